//! Reads an object from its start to its end, a few pieces ahead of its consumer.
//!
//! The first pieces are short, because the schema of a table needs only the start of its objects. A reader
//! reserves memory for one piece when it is created. It fetches more pieces at the same time only if there is memory
//! for them. So a memory limit can slow a reader down, but cannot stop it.

use std::collections::VecDeque;
use std::io::{self, Read, Seek, SeekFrom};
use std::sync::Arc;

use bytes::{Buf, Bytes};
use strait::MemoryReservation;

use super::object::{Fetch, Object, piece_and_ahead};
use crate::memory::Memory;

/// The length of the first piece, unless pieces are shorter.
const FIRST: u64 = 256 << 10;

/// Reads an object in order.
pub(crate) struct Sequential {
    object: Arc<Object>,
    memory: Memory,
    /// The position of the next byte.
    at: u64,
    /// The bytes from there that have arrived, and their memory.
    arrived: Bytes,
    held: Option<Room>,
    /// The pieces after them, and the position after these pieces.
    fetching: VecDeque<(Fetch, Room)>,
    next: u64,
    /// Memory for a piece that is not in use.
    spare: Option<Room>,
    /// The length of the next piece, and the largest one.
    piece: u64,
    largest: u64,
    /// The number of pieces to fetch at the same time, and the largest number.
    ahead: usize,
    most: usize,
}

/// The memory of a piece.
struct Room {
    _reservation: MemoryReservation,
    /// Whether the reader keeps this memory until it ends.
    is_kept: bool,
}

impl Sequential {
    /// Prepares to read. The error is that of a refused reservation.
    pub(crate) fn new(object: &Arc<Object>, memory: &Memory) -> strait::Result<Sequential> {
        let (largest, ahead) = piece_and_ahead(memory);
        let _reservation = memory.reserve(largest.min(object.size()), "reading an object")?;
        Ok(Sequential {
            object: Arc::clone(object),
            memory: memory.for_sources(),
            at: 0,
            arrived: Bytes::new(),
            held: None,
            fetching: VecDeque::new(),
            next: 0,
            spare: Some(Room { _reservation, is_kept: true }),
            piece: FIRST.min(largest),
            largest,
            ahead: 1,
            most: (ahead / largest).max(1) as usize,
        })
    }

    /// The number of bytes of the object.
    pub(crate) fn size(&self) -> u64 {
        self.object.size()
    }

    /// Starts requests, as many as are wanted and as there is memory for.
    fn fetch_ahead(&mut self) -> io::Result<()> {
        while self.fetching.len() < self.ahead && self.next < self.size() {
            let bytes = self.piece.min(self.size() - self.next);
            let room = self.spare.take().or_else(|| {
                let _reservation = self.memory.reserve(bytes, "reading an object").ok()?;
                Some(Room { _reservation, is_kept: false })
            });
            let Some(room) = room else { break };
            let fetch = self.object.fetch(self.next..self.next + bytes);
            self.fetching.push_back((fetch.map_err(io::Error::other)?, room));
            self.next += bytes;
            self.piece = (2 * self.piece).min(self.largest);
        }
        Ok(())
    }

    /// Makes the next piece available, unless the object has ended.
    fn advance(&mut self) -> io::Result<()> {
        self.release();
        self.fetch_ahead()?;
        if let Some((fetch, room)) = self.fetching.pop_front() {
            self.held = Some(room);
            self.arrived = self.object.fetched(fetch).map_err(|told| {
                // Bytes that did not come must not be skipped.
                self.restart(self.at);
                io::Error::other(told)
            })?;
            self.ahead = (self.ahead + 1).min(self.most);
            self.fetch_ahead()?;
        }
        Ok(())
    }

    /// Returns the memory of the piece that was read.
    fn release(&mut self) {
        self.arrived = Bytes::new();
        if let Some(room) = self.held.take().filter(|room| room.is_kept) {
            self.spare = Some(room);
        }
    }

    /// Forgets all pieces, and continues at another position.
    fn restart(&mut self, at: u64) {
        self.release();
        let kept = self.fetching.drain(..).map(|(_, room)| room).find(|room| room.is_kept);
        self.spare = self.spare.take().or(kept);
        (self.at, self.next) = (at, at);
        (self.piece, self.ahead) = (FIRST.min(self.largest), 1);
    }
}

impl Read for Sequential {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.arrived.is_empty() {
            self.advance()?;
        }
        let length = buffer.len().min(self.arrived.len());
        self.arrived.copy_to_slice(&mut buffer[..length]);
        self.at += length as u64;
        Ok(length)
    }
}

impl Seek for Sequential {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(offset) => self.size().checked_add_signed(offset),
            SeekFrom::Current(offset) => self.at.checked_add_signed(offset),
        };
        let at = at.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        let skipped = at.checked_sub(self.at).filter(|&n| n <= self.arrived.len() as u64);
        match skipped {
            Some(bytes) => {
                self.arrived.advance(bytes as usize);
                self.at = at;
            }
            None => self.restart(at),
        }
        Ok(at)
    }
}
