//! Stored figures: a line of JSON each, with host, architecture and CPU model.

use serde::{Deserialize, Serialize};

use super::host::Figure;
use stile::config::Arch;

/// A figure and its origin.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The host's name.
    pub host: String,
    /// The architecture, which is left out if it is the default one.
    #[serde(default, skip_serializing_if = "is_default")]
    pub arch: Arch,
    /// The emulated CPUs' model.
    pub cpu: String,
    /// 1: a guest of the host's. 2: a guest of a hypervisor that is one.
    pub level: u8,
    /// The ablated technique, if the figure is from an ablation: `nothing` is its base.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ablation: Option<String>,
    /// The figure.
    #[serde(flatten)]
    pub figure: Figure,
}

fn is_default(arch: &Arch) -> bool {
    *arch == Arch::default()
}

impl Record {
    /// Whether both records have the same origin and operation.
    pub fn is_of_same(&self, other: &Self) -> bool {
        (&self.host, self.arch, &self.cpu, self.level, &self.ablation, &self.figure.operation)
            == (&other.host, other.arch, &other.cpu, other.level, &other.ablation, &other.figure.operation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json_lines;

    #[test]
    fn records_are_read_as_they_were_written() {
        let figure = Figure {
            operation: "hyp_call".to_owned(),
            instructions: 35.25,
            exits: Some(1.0),
            reasons: Default::default(),
            outside: None,
            vmx: None,
            iterations: 4096,
        };
        let plain = Record { host: "stile".to_owned(), arch: Arch::Aarch64, cpu: "max".to_owned(), level: 1, ablation: None, figure };
        let ablated = Record { ablation: Some("timer".to_owned()), ..plain.clone() };
        let uncounted = Record { figure: Figure { exits: None, ..plain.figure.clone() }, ..plain.clone() };
        let records = [plain, ablated, uncounted];
        let text = json_lines::write(&records).unwrap();
        assert_eq!(
            text.lines().next(),
            Some(r#"{"host":"stile","cpu":"max","level":1,"operation":"hyp_call","instructions":35.25,"exits":1.0,"iterations":4096}"#)
        );
        assert_eq!(json_lines::read::<Record>(&text).unwrap(), records);
    }
}
