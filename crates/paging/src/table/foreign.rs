//! First-stage tables under which a program runs that is not the hypervisor's, such as firmware's runtime services.

use super::Level;
use super::format::{Attributes, Format};

/// The descriptors of a format, for tables of a foreign program: with all permissions, also those that the format refuses to the
/// hypervisor's own pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Foreign<F>(pub F);

impl<F: Format> Format for Foreign<F> {
    type Layout = F::Layout;
    type Permissions = F::Permissions;

    fn supports(&self, _: F::Permissions) -> bool {
        true
    }

    fn encode(&self, attributes: Attributes<F::Permissions>) -> u64 {
        self.0.encode(attributes)
    }

    fn decode(&self, descriptor: u64) -> Attributes<F::Permissions> {
        self.0.decode(descriptor)
    }

    fn with_permissions(&self, descriptor: u64, permissions: F::Permissions) -> u64 {
        self.0.with_permissions(descriptor, permissions)
    }

    fn needs_break(&self, old: u64, new: u64) -> bool {
        self.0.needs_break(old, new)
    }

    fn largest(&self) -> Level {
        self.0.largest()
    }

    fn is_accessed(&self, descriptor: u64) -> bool {
        self.0.is_accessed(descriptor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{Ia32e, Ia32ePermissions, MemoryType};

    #[test]
    fn pages_can_be_writable_and_executable() {
        let format = Ia32e { largest: Level::L1 };
        assert!(!format.supports(Ia32ePermissions::ALL) && Foreign(format).supports(Ia32ePermissions::ALL));
        let attributes = Attributes { memory: MemoryType::Normal, permissions: Ia32ePermissions::ALL };
        assert_eq!(Foreign(format).decode(Foreign(format).encode(attributes)), attributes);
    }
}
