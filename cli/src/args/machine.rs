//! Selection of a machine, and the commands that need no other arguments.

use std::path::PathBuf;

use clap::Args;
use clap::builder::TypedValueParser;
use stile_blob::MAX_GICV2_VCPUS;

use super::values::{ARCHITECTURES, CPU_MODELS, MITIGATIONS, NESTED, ON_RESET};
use crate::config::{Arch, DebianKernel, Flags, KernelSource};
use crate::disk::drive::Drive;
use crate::disk::folder::Folder;
use crate::disk::network::Network;

/// A machine: a file, one VM by flags, or a file with one VM and flags that change it.
#[derive(Debug, Clone, Default, Args)]
pub struct MachineArgs {
    /// The configuration of a machine (TOML).
    #[arg(value_name = "CONFIG.toml")]
    pub config: Option<PathBuf>,
    /// The architecture: aarch64 (in an emulated Arm server) or x86_64 (in an emulated PC).
    #[arg(long, value_name = "ARCH", value_parser = ARCHITECTURES, hide_possible_values = true)]
    pub arch: Option<String>,
    /// The VM's kernel: a file (Image, compressed Image, ELF or flat binary), or `debian`, `debian:6.12`, `debian:6.1`,
    /// `debian-general`, `debian-installer`, `debian-xen`; or UEFI firmware: a file, or `debian-edk2`, which starts the disks'
    /// boot loaders.
    #[arg(long, value_name = "FILE")]
    pub kernel: Option<String>,
    /// The VM's initial RAM file system: a file, `busybox` or `none`.
    #[arg(long, value_name = "FILE")]
    pub initrd: Option<String>,
    /// Answers for Debian's installer in the format of debconf, a preseed file: it then asks nothing that the file answers, and takes the
    /// default for other questions.
    #[arg(long, value_name = "FILE")]
    pub preseed: Option<String>,
    /// The kernel's command line. With the busybox system it is added to that system's parameters.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub append: Option<String>,
    /// The VM's virtual CPUs, 1 to 256.
    #[arg(long, value_name = "N", value_parser = whole_number)]
    pub vcpus: Option<i64>,
    /// The VM's memory, such as 512M or 1G.
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<String>,
    /// Run this command in the VM, print its output, and exit with its status.
    #[arg(long, value_name = "COMMAND")]
    pub exec: Option<String>,
    /// The physical CPUs that the VM may use, such as 0-3,5.
    #[arg(long, value_name = "LIST")]
    pub cpus: Option<String>,
    /// Keep each vCPU on one physical CPU.
    #[arg(long)]
    pub pinned: bool,
    /// Give the VM its own EL2 or VMX, for a hypervisor in it. The mode: nv2 (default), nv (Arm), enlightened (x86-64) or off.
    #[arg(long, value_name = "MODE", num_args = 0..=1, require_equals = true, default_missing_value = "nv2", value_parser = NESTED,
        hide_possible_values = true)]
    pub nested: Option<String>,
    /// Consequence of the VM's reset.
    #[arg(long, value_name = "restart|restart:N|stop", value_parser = ON_RESET, hide_possible_values = true)]
    pub on_reset: Option<String>,
    /// Time slice of a vCPU while another waits for its CPU, such as 5ms.
    #[arg(long, value_name = "TIME")]
    pub slice: Option<String>,
    /// Mitigations of speculative-execution attacks: those that the CPU needs, none, or all that it can execute.
    #[arg(long, value_name = "auto|off|all", value_parser = MITIGATIONS, hide_possible_values = true)]
    pub mitigations: Option<String>,
    /// The Arm machine's interrupt controller, which the VMs have, too: 3 (GICv3, the default) or 2 (GICv2).
    #[arg(long, value_name = "2|3", value_parser = whole_number)]
    pub gic: Option<i64>,
    /// The emulated CPUs' model, such as max, cortex-a76 or cortex-a57.
    #[arg(long, value_name = "MODEL", value_parser = CPU_MODELS, hide_possible_values = true)]
    pub cpu: Option<String>,
    /// The emulated machine's CPUs.
    #[arg(long, value_name = "N", value_parser = whole_number)]
    pub smp: Option<i64>,
    /// The emulated machine's memory; by default it is enough for the VMs.
    #[arg(long, value_name = "SIZE")]
    pub machine_memory: Option<String>,
    /// A disk of the VM's: an image in the format qcow2, or raw with `,format=raw`; can be given several times. With `,in-memory` the VM
    /// has a copy of a raw image in its memory, and its changes are lost. Without a kernel, the VM starts the system on the first other
    /// one; --exec then runs in that system. With `,served`, another VM serves it, which is added.
    #[arg(long, value_name = "FILE[,readonly][,format=raw][,served][,in-memory]", value_parser = Drive::parse)]
    pub disk: Vec<Drive>,
    /// A network of the VM's: through the emulator, with ports of this machine that lead to the VM's; or between VMs. With `,served`,
    /// another VM serves it, which is added.
    #[arg(long, value_name = "user[,forward=PORT:VM-PORT][,served]|bridge=NAME[,served]", value_parser = Network::parse)]
    pub net: Vec<Network>,
    /// A folder of this machine for the VM, which finds it at /mnt/NAME; by default NAME is the folder's. Can be given several times.
    /// Debian's kernel is then 6.12, unless another one is given. With `,served`, another VM serves it, which is added.
    #[arg(long, value_name = "DIR[,readonly][,tag=NAME][,served]", value_parser = Folder::parse)]
    pub share: Vec<Folder>,
    /// Give the VM random bytes, which another VM serves, which is added.
    #[arg(long)]
    pub rng: bool,
    /// Give the VM a second console, whose output goes to the file NAME.log in a folder of this machine; NAME is the VM's. Another VM serves
    /// it, which is added.
    #[arg(long, value_name = "DIR")]
    pub console: Option<String>,
    /// Give the VM sockets (vsock), and have a port of this machine lead to one of their ports. Can be given several times. Another VM
    /// serves them, which is added.
    #[arg(long, value_name = "forward=PORT:VM-PORT", value_parser = socket_forward)]
    pub vsock: Vec<String>,
}

/// Parses a forwarded port of sockets; the configuration checks its numbers.
fn socket_forward(text: &str) -> Result<String, String> {
    text.strip_prefix("forward=").map(str::to_owned).ok_or_else(|| "expected forward=PORT:VM-PORT, such as forward=2222:22".to_owned())
}

/// Parses a number, of which the configuration checks the range.
fn whole_number(text: &str) -> Result<i64, String> {
    text.parse().map_err(|_| "expected a whole number".to_owned())
}

impl MachineArgs {
    /// Whether another VM serves a device of this one.
    fn is_served(&self) -> bool {
        self.rng
            || self.console.is_some()
            || !self.vsock.is_empty()
            || self.disk.iter().any(|disk| disk.served)
            || self.net.iter().any(|network| network.served)
            || self.share.iter().any(|folder| folder.served)
    }

    /// The most CPUs of such a machine.
    fn most_cpus(&self) -> i64 {
        // A GICv2 has as many CPU interfaces as a VM's has.
        if self.gic == Some(2) { MAX_GICV2_VCPUS.into() } else { stile_board::MAX_CPUS as i64 }
    }

    /// The settings as the configuration takes them.
    pub fn flags(&self) -> Flags {
        // Without any argument there is one VM, with Debian's newest kernel.
        let alone = self.config.is_none();
        // By default, each vCPU of a VM without a file has a CPU, and so has the VM that serves its devices: on a shared one, a start of
        // Debian takes a third more of the emulator's time. An invalid number is reported for --vcpus only.
        let cpus_for_vcpus = self.vcpus.filter(|vcpus| alone && self.cpus.is_none() && (1..=stile_board::MAX_VCPUS as i64).contains(vcpus));
        let cpus_for_vcpus = cpus_for_vcpus.map(|vcpus| (vcpus + i64::from(self.is_served())).min(self.most_cpus()));
        // A disk has its own kernel.
        let from_disk = self.kernel.is_none() && self.disk.iter().any(|disk| !disk.in_memory);
        // Debian's newest kernel has no file system for shared folders.
        let arch = Arch::ALL.into_iter().find(|arch| self.arch.as_deref() == Some(arch.name())).unwrap_or_default();
        let with_folders = DebianKernel::with_folders(arch, false).next().filter(|_| !self.share.is_empty());
        let debian = with_folders.unwrap_or(DebianKernel::Newest);
        // A command requires Debian, and must end the run even if it resets the VM.
        let with_command = |default: &str| (alone && self.exec.is_some()).then(|| default.to_owned());
        // The nested Stile of a VM has it in its own VM.
        let stile = self.kernel.as_deref().is_some_and(|kernel| kernel.split(':').next() == Some(KernelSource::STILE));
        Flags {
            arch: self.arch.clone(),
            machine_cpus: self.smp.or(cpus_for_vcpus),
            machine_memory: self.machine_memory.clone(),
            cpu: self.cpu.clone(),
            slice: self.slice.clone(),
            mitigations: self.mitigations.clone(),
            gic: self.gic,
            kernel: self.kernel.clone().or_else(|| (alone && !from_disk).then(|| debian.word().to_owned())),
            initrd: self.initrd.clone().or_else(|| with_command("busybox").filter(|_| !stile && !from_disk)),
            preseed: self.preseed.clone(),
            append: self.append.clone(),
            memory: self.memory.clone(),
            vcpus: self.vcpus,
            cpus: self.cpus.clone(),
            pinned: self.pinned,
            nested: self.nested.clone(),
            on_reset: self.on_reset.clone().or_else(|| with_command("stop")),
            exec: self.exec.clone(),
            disks: self.disk.clone(),
            networks: self.net.clone(),
            shares: self.share.clone(),
            rng: self.rng,
            console: self.console.clone(),
            vsock: self.vsock.clone(),
            inside: None,
            vms_only: false,
        }
    }
}

/// `stile check`.
#[derive(Debug, Default, Args)]
pub struct CheckArgs {
    /// The machine.
    #[command(flatten)]
    pub machine: MachineArgs,
    /// Print a JSON object: the machine, its VMs and notes; or the mistakes of the configuration.
    #[arg(long)]
    pub json: bool,
}

/// `stile doctor`.
#[derive(Debug, Default, Args)]
pub struct DoctorArgs {
    /// Print a JSON object: findings, what is in the cache, and the features of the emulator's CPUs.
    #[arg(long)]
    pub json: bool,
}

/// `stile build`.
#[derive(Debug, Args)]
pub struct BuildArgs {
    /// The machine.
    #[command(flatten)]
    pub machine: MachineArgs,
    /// Path of the image.
    #[arg(long, short, value_name = "IMAGE")]
    pub output: PathBuf,
    /// Print a JSON object: output, bytes, cpus and memory.
    #[arg(long)]
    pub json: bool,
}

/// `stile fetch`.
#[derive(Debug, Args)]
pub struct FetchArgs {
    /// The architecture whose packages are fetched: aarch64 or x86_64.
    #[arg(long, value_name = "ARCH", default_value_t, hide_possible_values = true,
        value_parser = ARCHITECTURES.try_map(|name| Arch::named(&name)))]
    pub arch: Arch,
    /// Print a JSON array: item, package and version.
    #[arg(long)]
    pub json: bool,
}

/// `stile image`.
#[derive(Debug, Args)]
pub struct ImageArgs {
    /// The machine.
    #[command(flatten)]
    pub machine: MachineArgs,
    /// Path of the image: of a disk, or with --iso of a CD-ROM.
    #[arg(long, short, value_name = "FILE", required_unless_present = "netboot")]
    pub output: Option<PathBuf>,
    /// Write a CD-ROM image instead of a disk's.
    #[arg(long, requires = "output")]
    pub iso: bool,
    /// Write the program stile.efi for network boot (PXE or HTTP) into this directory, which is created if it doesn't exist.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["output", "iso"])]
    pub netboot: Option<PathBuf>,
    /// Also put the kernels and initial RAM file systems that CONFIG.toml names into the image's folder VMS, where they can be replaced.
    #[arg(long, requires = "config", conflicts_with_all = [
        "netboot", "bench", "sign", "kernel", "initrd", "preseed", "append", "exec",
    ])]
    pub files: bool,
    /// Make a bench stick: an image that describes the machine on which it starts, and measures operations of VMs there.
    #[arg(long, conflicts_with_all = [
        "config", "kernel", "initrd", "preseed", "append", "vcpus", "memory", "exec", "cpus", "pinned", "nested", "on_reset", "slice",
        "mitigations", "cpu", "smp", "machine_memory", "disk", "net", "share", "rng", "console", "vsock",
    ])]
    pub bench: bool,
    /// Signature for Secure Boot.
    #[command(flatten)]
    pub signature: SignArgs,
    /// Print a JSON object: output, bytes, cpus and memory.
    #[arg(long)]
    pub json: bool,
}

/// Signature for Secure Boot.
#[derive(Debug, Default, Args)]
pub struct SignArgs {
    /// Sign the program for Secure Boot with this private key (PEM), whose certificate the machine's firmware trusts; needs sbsign.
    #[arg(long, value_name = "KEY", requires = "cert")]
    pub sign: Option<PathBuf>,
    /// The key's certificate (PEM).
    #[arg(long, value_name = "CERT", requires = "sign")]
    pub cert: Option<PathBuf>,
}
