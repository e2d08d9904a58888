//! Calls of UEFI's runtime services after boot services have ended (UEFI Specification, 8 Services — Runtime Services), in physical mode:
//! what firmware uses is mapped at its physical address.

use stile_firmware::figures::PART;
use stile_firmware::runtime::Runtime;
use stile_paging::PAGE_SIZE;
use uefi_raw::Status;
use uefi_raw::table::runtime::VariableAttributes;
use uefi_raw::{Char16, Guid};

use crate::efi::figures::{ATTRIBUTES, NAME_LEN, VENDOR, name};
use crate::once::Once;
use crate::{address_space, memory};

static SERVICES: Once<Services> = Once::new();

/// Prepares calls of these services. Returns false without any: firmware has not started a bench stick.
///
/// # Errors
/// As of [`Services::new`].
pub fn prepare(runtime: Option<&Runtime>) -> Result<bool, &'static str> {
    let Some(runtime) = runtime else { return Ok(false) };
    SERVICES.set(Services::new(runtime)?);
    Ok(true)
}

/// Returns the services that were prepared.
pub fn get() -> &'static Services {
    SERVICES.get()
}

type SetVariable = unsafe extern "efiapi" fn(*const Char16, *const Guid, VariableAttributes, usize, *const u8) -> Status;

/// Arguments of a call, which firmware reads at their physical address.
#[repr(C)]
struct Arguments {
    vendor: Guid,
    name: [u16; NAME_LEN],
    data: [u8; PART],
}

const _: () = assert!(size_of::<Arguments>() <= PAGE_SIZE as usize);

/// Tables and memory for calls.
pub struct Services {
    /// Physical address of the root of the tables under which firmware is called.
    pub root: u64,
    /// Physical address of SetVariable.
    set_variable: u64,
    /// Physical address of the page of [`Arguments`].
    arguments: u64,
}

impl Services {
    /// Makes the tables.
    ///
    /// # Errors
    /// A description: no memory is left, or firmware's addresses can't be mapped.
    fn new(runtime: &Runtime) -> Result<Services, &'static str> {
        let arguments = memory::allocate_pages(PAGE_SIZE)?;
        let mut spans = runtime.memory.clone();
        spans.push(arguments..arguments + PAGE_SIZE).map_err(|_| "firmware's services use too many parts of memory")?;
        let root = address_space::with_identity(&spans, &runtime.devices)?;
        Ok(Services { root, set_variable: runtime.set_variable, arguments })
    }

    /// Sets the variable of a part; without data, removes it.
    ///
    /// # Errors
    /// Firmware's status.
    ///
    /// # Safety
    /// The CPU uses the tables of [`Self::root`], and is in the state that UEFI requires of callers: interrupts off, floating-point
    /// registers usable, at least 8 KiB of stack. No other CPU calls firmware.
    pub unsafe fn set_variable(&self, part: usize, data: &[u8]) -> Result<(), usize> {
        let arguments = address_space::physical(self.arguments).cast::<Arguments>();
        let mut copy = Arguments { vendor: VENDOR, name: name(part), data: [0; PART] };
        let Some(to) = copy.data.get_mut(..data.len()) else { return Err(Status::BAD_BUFFER_SIZE.0) };
        to.copy_from_slice(data);
        // SAFETY: the page is in the direct map and belongs to this structure, and only one CPU is here.
        unsafe { arguments.write(copy) };
        let arguments = self.arguments as *const Arguments;
        // SAFETY: the address is that of firmware's table (`efi::figures::deliver`), and in code that runtime services keep (`Runtime::new`).
        let set_variable = unsafe { core::mem::transmute::<usize, SetVariable>(self.set_variable as usize) };
        // SAFETY: by the function's contract firmware can be called, and its tables map the arguments at their physical address. Addresses of
        // fields are taken without access to them.
        let status = unsafe {
            set_variable(
                (&raw const (*arguments).name).cast(),
                &raw const (*arguments).vendor,
                ATTRIBUTES,
                data.len(),
                (&raw const (*arguments).data).cast(),
            )
        };
        if status == Status::SUCCESS { Ok(()) } else { Err(status.0) }
    }
}
