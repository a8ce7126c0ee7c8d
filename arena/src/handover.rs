//! Takes bytes and perhaps a descriptor, gives them to the process at the other end of a Unix socket. Neither call
//! waits: where nothing can be sent or has come, the error is `WouldBlock`.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

/// Descriptors that may come with one message; we send one at most.
const MOST_DESCRIPTORS: usize = 4;

/// Sends a part of `bytes` and says how much; the descriptor goes with the first byte.
///
/// # Errors
/// The socket takes nothing now, or the other end is gone.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = descriptor.as_slice();
    if !descriptors.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let sent = rustix::io::retry_on_intr(|| {
        rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, flags)
    })?;
    Ok(sent)
}

/// Reads into `bytes` and says how much, 0 at the end; descriptors that came are appended in their order.
///
/// # Errors
/// Nothing has come, the connection is broken, or more descriptors came than are taken.
pub fn receive(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
    descriptors: &mut VecDeque<OwnedFd>,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut ancillary, flags)
    })?;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    if received.flags.contains(ReturnFlags::CTRUNC) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "descriptors came that were not received"));
    }
    Ok(received.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_descriptor_comes_with_its_bytes_and_works() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut file = tempfile();
        assert_eq!(send(ours.as_fd(), b"plain", None).unwrap(), 5);
        assert_eq!(send(ours.as_fd(), b"with", Some(file.as_fd())).unwrap(), 4);
        std::io::Write::write_all(&mut file, b"content").unwrap();
        let (mut bytes, mut descriptors) = ([0; 64], VecDeque::new());
        let mut got = Vec::new();
        while got.len() < 9 {
            let received = receive(theirs.as_fd(), &mut bytes, &mut descriptors).unwrap();
            got.extend_from_slice(&bytes[..received]);
        }
        assert_eq!(got, b"plainwith");
        assert_eq!(descriptors.len(), 1);
        let mut received = std::fs::File::from(descriptors.pop_front().unwrap());
        std::io::Seek::rewind(&mut received).unwrap();
        let mut text = String::new();
        received.read_to_string(&mut text).unwrap();
        assert_eq!(text, "content");
    }

    #[test]
    fn nothing_to_read_is_would_block_and_a_closed_end_is_zero() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (mut bytes, mut descriptors) = ([0; 8], VecDeque::new());
        let error = receive(theirs.as_fd(), &mut bytes, &mut descriptors).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        drop(ours);
        assert_eq!(receive(theirs.as_fd(), &mut bytes, &mut descriptors).unwrap(), 0);
        assert!(send(theirs.as_fd(), b"x", None).is_err());
    }

    #[test]
    fn more_descriptors_than_are_taken_are_an_error() {
        const MANY: usize = 4 * MOST_DESCRIPTORS;
        let (ours, theirs) = UnixStream::pair().unwrap();
        let file = tempfile();
        let many = [file.as_fd(); MANY];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MANY))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&many)));
        rustix::net::sendmsg(&ours, &[IoSlice::new(b"x")], &mut ancillary, SendFlags::empty()).unwrap();
        let error = receive(theirs.as_fd(), &mut [0; 8], &mut VecDeque::new()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }

    fn tempfile() -> std::fs::File {
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        std::fs::File::from(rustix::fs::memfd_create("test", flags).unwrap())
    }
}
