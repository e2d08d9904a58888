//! The settings that the command line can give.

use super::{
    Arch, Mistake, Place,
    draft::{Cpus, DiskDraft, Draft, FolderDraft, Given, NetworkDraft, VmDraft},
    served,
};
use crate::disk::drive::Drive;
use crate::disk::folder::Folder;
use crate::disk::network::Network;

/// Settings from the command line, in the user's words; `None` if not given.
///
/// Those from [`Flags::kernel`] on apply to a virtual machine: the only one of the file, if there is one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// `--arch`: the architecture.
    pub arch: Option<String>,
    /// `--smp`: physical CPUs.
    pub machine_cpus: Option<i64>,
    /// `--machine-memory`: physical memory, such as `2G`.
    pub machine_memory: Option<String>,
    /// `--cpu`: the emulator's CPU model.
    pub cpu: Option<String>,
    /// `--slice`: the time slice, such as `5ms`.
    pub slice: Option<String>,
    /// `--mitigations`: `auto`, `off` or `all`.
    pub mitigations: Option<String>,
    /// `--gic`: architecture of an Arm machine's interrupt controller: 2 or 3.
    pub gic: Option<i64>,
    /// `--kernel`: a file, or one of [`super::DebianKernel::WORDS`].
    pub kernel: Option<String>,
    /// `--initrd`: a file, `busybox` or `none`.
    pub initrd: Option<String>,
    /// `--preseed`: a file.
    pub preseed: Option<String>,
    /// `--append`: the kernel's command line.
    pub append: Option<String>,
    /// `--memory`: RAM, such as `512M`.
    pub memory: Option<String>,
    /// `--vcpus`: virtual CPUs.
    pub vcpus: Option<i64>,
    /// `--cpus`: physical CPUs that it may use, such as `0-3,5`.
    pub cpus: Option<String>,
    /// `--pinned`: each vCPU is pinned to a CPU.
    pub pinned: bool,
    /// `--nested`: the VM gets virtual EL2; `nv2`, `nv`, `enlightened` or `off`.
    pub nested: Option<String>,
    /// `--on-reset`: `restart`, `restart:N` or `stop`.
    pub on_reset: Option<String>,
    /// `--exec`: a shell command.
    pub exec: Option<String>,
    /// `--disk`: disks.
    pub disks: Vec<Drive>,
    /// `--net`: networks.
    pub networks: Vec<Network>,
    /// `--share`: folders of this machine.
    pub shares: Vec<Folder>,
    /// `--console`: the folder with the file for a console's output.
    pub console: Option<String>,
    /// `--vsock`: ports of this machine that lead to sockets.
    pub vsock: Vec<String>,
    /// `--rng`: random bytes.
    pub rng: bool,
    /// Not a flag: the machine is a virtual machine that runs Stile, on this architecture.
    pub inside: Option<Arch>,
    /// Not a flag: the settings of the machine are these flags' alone, not the file's.
    pub vms_only: bool,
}

impl Flags {
    /// Overrides the settings of `draft` with the flags.
    pub(super) fn apply(&self, draft: &mut Draft, mistakes: &mut Vec<Mistake>) {
        if self.vms_only {
            // VMs have the machine's.
            *draft = Draft { vms: std::mem::take(&mut draft.vms), gic: draft.gic.take(), ..Draft::default() };
        }
        over(&mut draft.arch, &self.arch, "--arch");
        over(&mut draft.cpus, &self.machine_cpus, "--smp");
        over(&mut draft.memory, &self.machine_memory, "--machine-memory");
        over(&mut draft.cpu, &self.cpu, "--cpu");
        over(&mut draft.slice, &self.slice, "--slice");
        over(&mut draft.mitigations, &self.mitigations, "--mitigations");
        over(&mut draft.gic, &self.gic, "--gic");
        if let (Some(arch), None) = (self.inside, &draft.arch) {
            draft.arch = Some(Given { value: arch.name().to_owned(), place: Place::Nowhere });
        }
        for vm in &mut draft.vms {
            vm.inside = self.inside.is_some();
        }

        // Applies them to a scratch virtual machine to learn which were given.
        let mut probe = VmDraft::new(Place::Nowhere);
        let Some(first) = self.apply_vm(&mut probe) else {
            return;
        };
        match &mut draft.vms[..] {
            [vm] => {
                self.apply_vm(vm);
            }
            [] => {}
            vms => mistakes.push(
                Mistake::new(Place::Flag(first), format!("the file has {} virtual machines", vms.len()))
                    .expected("a file with one, or the setting in the file"),
            ),
        }
    }

    /// Overrides the settings of `vm` with the flags; returns the first flag given, if any.
    fn apply_vm(&self, vm: &mut VmDraft) -> Option<&'static str> {
        let cpus = self.cpus.clone().map(Cpus::Text);
        let pinned = self.pinned.then_some(true);
        let nested = self.nested.as_ref().map(|_| true);
        vm.disks.extend(self.disks.iter().map(DiskDraft::from));
        vm.networks.extend(self.networks.iter().map(NetworkDraft::from));
        vm.folders.extend(self.shares.iter().map(FolderDraft::from));
        vm.served.extend(self.rng.then(served::random_bytes));
        vm.served.extend(self.console.as_deref().map(served::console));
        vm.served.extend((!self.vsock.is_empty()).then(|| served::sockets(&self.vsock)));
        [
            over(&mut vm.nested, &nested, "--nested"),
            over(&mut vm.nested_way, &self.nested, "--nested"),
            over(&mut vm.kernel, &self.kernel, "--kernel"),
            over(&mut vm.initrd, &self.initrd, "--initrd"),
            over(&mut vm.preseed, &self.preseed, "--preseed"),
            over(&mut vm.append, &self.append, "--append"),
            over(&mut vm.memory, &self.memory, "--memory"),
            over(&mut vm.vcpus, &self.vcpus, "--vcpus"),
            over(&mut vm.cpus, &cpus, "--cpus"),
            over(&mut vm.pinned, &pinned, "--pinned"),
            over(&mut vm.on_reset, &self.on_reset, "--on-reset"),
            over(&mut vm.exec, &self.exec, "--exec"),
            self.disks.first().map(|_| "--disk"),
            self.networks.first().map(|_| "--net"),
            self.shares.first().map(|_| "--share"),
        ]
        .into_iter()
        .flatten()
        .next()
    }
}

/// Replaces a setting by a flag's value, if present, and returns the flag's name.
fn over<T: Clone>(setting: &mut Option<Given<T>>, value: &Option<T>, flag: &'static str) -> Option<&'static str> {
    let value = value.clone()?;
    *setting = Some(Given::new(value, Place::Flag(flag)));
    Some(flag)
}
