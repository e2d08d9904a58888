//! Encoding of sets of physical CPUs.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use stile_board::{CPU_WORDS, CpuSet};

pub fn serialize<S: Serializer>(cpus: &CpuSet, serializer: S) -> Result<S::Ok, S::Error> {
    cpus.words().serialize(serializer)
}

pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<CpuSet, D::Error> {
    <[u64; CPU_WORDS]>::deserialize(deserializer).map(CpuSet::from_words)
}
