//! Limits of requests' exits.

use std::collections::BTreeMap;

use serde::Deserialize;

/// The most exits that a request may take.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// Of all VMs.
    pub exits: f64,
    /// Of the VM that makes the requests.
    pub client: f64,
}

/// Budgets by path and load.
pub type ByPath = BTreeMap<String, BTreeMap<String, Budget>>;
