//! Looks rows up in a table, and returns the result for every row, in the order of the rows.
//!
//! ```text
//!  probe rows   k5  k1  k9  k2
//!  found         1   1   0   1        one bit per row
//!  build        v5  v1   ?  v2        one value per row, if each key occurs once in the table
//! ```
//!
//! If most rows have a match, this takes about half the bytes of pairs. The host does not have to fetch probe
//! rows either: they are the rows of the chunk. The size of the result is known in advance. So the copy can
//! start without reading a counter, and the device never waits for the host.

use super::look_up::look_ups;
use super::wanted::{InOrderBlock, Receiver, Wanted};
use crate::device::{DeviceSide, DeviceStage, Event, Flavour, Memory, Session, View, abi};
use crate::error::Result;

/// Rows per word of bits.
const ROWS_PER_WORD: u64 = 32;

/// See the [module](self).
pub(crate) struct InOrder<'a> {
    session: &'a Session<'a>,
    control: Memory,
    /// While one buffer is copied to the host, the device fills the other.
    buffers: [Buffer; 2],
    current: usize,
}

struct Buffer {
    build: Option<Memory>,
    found: Memory,
    /// The event after which the previous content has been copied to the host.
    gone: Option<Event>,
}

impl<'a> InOrder<'a> {
    /// Prepares for chunks of at most `chunk_rows` rows.
    pub(crate) fn new(session: &'a Session<'a>, wanted: &Wanted, chunk_rows: u64) -> Result<Self> {
        let control_bytes = size_of::<abi::Control>() as u64;
        let control = session.device.allocate(control_bytes, "the join's counts")?;
        let buffer = || -> Result<Buffer> {
            let build = match wanted.flavour {
                Flavour::Exists => None,
                _ => {
                    let bytes = chunk_rows * session.word.bytes();
                    Some(session.device.allocate(bytes, "the output's build values")?)
                }
            };
            let bytes = chunk_rows.div_ceil(ROWS_PER_WORD) * 4;
            let found = session.device.allocate(bytes, "bits of matched rows")?;
            Ok(Buffer { build, found, gone: None })
        };
        Ok(InOrder { session, control, buffers: [buffer()?, buffer()?], current: 0 })
    }

    /// Looks a chunk up.
    pub(crate) fn look_up(
        &mut self,
        table: abi::DeviceTable,
        chunk: &DeviceSide,
        wanted: &Wanted,
        to: &mut dyn Receiver,
    ) -> Result<()> {
        let session = self.session;
        let buffer = &mut self.buffers[self.current];
        if let Some(gone) = buffer.gone.take() {
            session.device.wait(session.compute, gone)?;
        }
        session.device.fill(session.compute, self.control.view, 0)?;
        let found = buffer.found.view.part(0, chunk.rows.div_ceil(ROWS_PER_WORD) * 4);
        let build = buffer.build.as_ref();
        let build = build.map(|build| build.view.part(0, chunk.rows * session.word.bytes()));
        let address = |view: Option<View>| view.map_or(0, |view| view.address);
        session.run(DeviceStage::ProbeInOrder(abi::Probe {
            table,
            columns: chunk.columns(),
            rows: chunk.rows,
            count: look_ups(session, chunk.rows),
            tile: session.device.shape(session.word).probe_tile,
            output: abi::Output {
                build: address(build),
                probe: found.address,
                build_flags: address(wanted.build_flags),
                control: self.control.address(),
                ..abi::Output::default()
            },
            ..abi::Probe::default()
        }))?;
        session.moved(found.bytes + build.map_or(0, |build| build.bytes));
        // The host stages the next chunks, and resolves earlier matches, while the device looks up.
        to.meanwhile(session)?;
        let block = InOrderBlock { rows: chunk.rows, first: chunk.first, build, found };
        self.buffers[self.current].gone = to.in_order(session, block)?;
        self.current = 1 - self.current;
        Ok(())
    }
}

impl Drop for InOrder<'_> {
    fn drop(&mut self) {
        self.session.finish_before_drop([self.session.compute, self.session.back]);
    }
}
