//! Writes that go through io_uring(7), several at a time. Read [`WriteRing`] first.

use std::os::fd::{AsRawFd, BorrowedFd};

use io_uring::{IoUring, opcode, types};
use rustix::io::Errno;

use super::pages::Aligned;

/// A ring and one aligned buffer for each write that can be under way.
pub(crate) struct WriteRing {
    ring: IoUring,
    /// One after the other; a write under way reads its part, so they live as long as the ring.
    buffers: Aligned,
    size: usize,
    depth: usize,
    in_flight: usize,
}

impl WriteRing {
    /// A ring for `depth` writes of `size` bytes each, of which `content` is a copy.
    pub(crate) fn new(depth: u32, content: &[u8]) -> Result<Self, Errno> {
        let ring = IoUring::new(depth).map_err(|error| errno(&error))?;
        let (size, depth) = (content.len(), depth as usize);
        let mut buffers = Aligned::new(size * depth);
        for buffer in buffers.get_mut().chunks_exact_mut(size) {
            buffer.copy_from_slice(content);
        }
        Ok(Self { ring, buffers, size, depth, in_flight: 0 })
    }

    /// Writes that were queued and have not been reported.
    #[inline]
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Queues a write of the buffer `slot`, which must be free, to `file` at `offset`, after putting
    /// `stamp` into its first eight bytes. Fails when the queue is full.
    #[inline]
    pub(crate) fn queue(
        &mut self,
        slot: usize,
        file: BorrowedFd<'_>,
        stamp: u64,
        offset: u64,
    ) -> Result<(), Errno> {
        if slot >= self.depth || self.in_flight >= self.depth {
            return Err(Errno::INVAL);
        }
        let buffer = &mut self.buffers.get_mut()[slot * self.size..][..self.size];
        buffer[..8].copy_from_slice(&stamp.to_le_bytes());
        let write = opcode::Write::new(types::Fd(file.as_raw_fd()), buffer.as_ptr(), self.size as u32)
            .offset(offset)
            .build()
            .user_data(slot as u64);
        // SAFETY: the buffer belongs to `self`, whose `Drop` waits for every write; the kernel takes
        // its own reference to the file, or answers EBADF if it is closed by then.
        unsafe { self.ring.submission().push(&write) }.map_err(|_| Errno::BUSY)?;
        self.in_flight += 1;
        Ok(())
    }

    /// io_uring_enter(2): hands over what is queued and sleeps until a write is done.
    #[inline]
    pub(crate) fn submit_and_wait(&mut self) -> Result<(), Errno> {
        match self.ring.submit_and_wait(1) {
            Ok(_) => Ok(()),
            Err(error) => match errno(&error) {
                // A signal, or completions that must be taken first: the caller takes what is there.
                Errno::INTR | Errno::AGAIN | Errno::BUSY => Ok(()),
                errno => Err(errno),
            },
        }
    }

    /// Calls `each` with slot and result (bytes, or an errno below 0) of every write that is done.
    #[inline]
    pub(crate) fn completed(&mut self, mut each: impl FnMut(usize, i32)) {
        for entry in self.ring.completion() {
            self.in_flight = self.in_flight.saturating_sub(1);
            each(entry.user_data() as usize, entry.result());
        }
    }
}

impl std::fmt::Debug for WriteRing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WriteRing").field("depth", &self.depth).field("in_flight", &self.in_flight).finish()
    }
}

impl Drop for WriteRing {
    fn drop(&mut self) {
        while self.in_flight > 0 {
            if self.submit_and_wait().is_err() {
                // Not even waiting works: leave the buffers to the kernel rather than free them.
                std::mem::forget(std::mem::replace(&mut self.buffers, Aligned::new(0)));
                return;
            }
            self.completed(|_, _| {});
        }
    }
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn queued_writes_arrive_and_a_slot_or_depth_that_is_not_there_is_refused() {
        let file = tempfile::tempfile().expect("a file");
        let mut ring = match WriteRing::new(4, &[7; 4096]) {
            Ok(ring) => ring,
            Err(errno) => return eprintln!("skipped: io_uring_setup fails with {errno}"),
        };
        assert_eq!(ring.queue(4, file.as_fd(), 0, 0), Err(Errno::INVAL));
        for slot in 0..4 {
            ring.queue(slot, file.as_fd(), slot as u64 + 10, slot as u64 * 4096).expect("room");
        }
        assert_eq!(ring.queue(0, file.as_fd(), 0, 0), Err(Errno::INVAL));
        let mut results = [0; 4];
        while ring.in_flight() > 0 {
            ring.submit_and_wait().expect("waits");
            ring.completed(|slot, result| results[slot] = result);
        }
        assert_eq!(results, [4096; 4]);
        let mut bytes = [0; 4096];
        rustix::io::pread(&file, &mut bytes, 8192).expect("reads");
        assert_eq!((bytes[0], bytes[8], bytes[4095]), (12, 7, 7));
        // Dropped with a write under way, it waits.
        ring.queue(1, file.as_fd(), 0, 0).expect("room");
    }
}
