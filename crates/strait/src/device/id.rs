//! Which device does a view or an event belong to?

use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::{Error, Result};

/// Identifies a device among all devices that this process has opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct DeviceId(u32);

impl DeviceId {
    /// The id of addresses that belong to no single device. Every device accepts them.
    pub(crate) const ANY: DeviceId = DeviceId(0);

    /// Returns an id that no other device has.
    pub(crate) fn unique() -> DeviceId {
        static LAST: AtomicU32 = AtomicU32::new(0);
        // After 2^32 devices, the numbers start again. Zero is reserved.
        let number = LAST.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        DeviceId(if number == 0 { u32::MAX } else { number })
    }

    /// Returns the number of the device.
    pub(crate) fn number(self) -> u32 {
        self.0
    }

    /// Returns an error unless this device may use something of `owner`. `what` names the thing.
    pub(crate) fn check(self, owner: DeviceId, what: &str) -> Result<()> {
        if owner == self || owner == DeviceId::ANY {
            return Ok(());
        }
        Err(Error::internal(format!(
            "{what} of device {} was used on device {}; a device takes only its own",
            owner.0, self.0
        )))
    }
}
