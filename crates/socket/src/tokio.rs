//! Sockets for applications on tokio (feature `tokio`).
//!
//! The sockets need no reactor: the net's thread wakes the tasks, in any runtime.

use crate::{Net, TcpSocket};
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A connection that implements [`AsyncRead`] and [`AsyncWrite`].
#[derive(Clone, Debug)]
pub struct TcpStream(crate::TcpStream);

impl TcpStream {
    /// Opens a connection.
    ///
    /// # Errors
    /// As [`crate::TcpStream::connect`].
    pub async fn connect(net: &Net, address: SocketAddr) -> io::Result<TcpStream> {
        let stream = TcpSocket::new(net).start(address)?;
        std::future::poll_fn(|context| stream.poll_opened(context)).await?;
        Ok(TcpStream(stream))
    }

    /// The connection as a blocking socket.
    pub fn get_ref(&self) -> &crate::TcpStream {
        &self.0
    }

    /// As [`TcpStream::get_ref`], by value.
    pub fn into_inner(self) -> crate::TcpStream {
        self.0
    }
}

impl From<crate::TcpStream> for TcpStream {
    fn from(stream: crate::TcpStream) -> TcpStream {
        TcpStream(stream)
    }
}

impl AsyncRead for TcpStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = self.0.poll_read(context, buffer.initialize_unfilled());
        read.map_ok(|count| buffer.advance(count))
    }
}

impl AsyncWrite for TcpStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.0.poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.0.shutdown(Shutdown::Write))
    }
}

/// A TCP socket that accepts connections.
#[derive(Clone, Debug)]
pub struct TcpListener(crate::TcpListener);

impl TcpListener {
    /// See [`crate::TcpListener::bind`].
    ///
    /// # Errors
    /// As [`crate::TcpListener::bind`].
    pub fn bind(net: &Net, address: SocketAddr) -> io::Result<TcpListener> {
        crate::TcpListener::bind(net, address).map(TcpListener)
    }

    /// Waits for a connection; returns it with the peer's address.
    ///
    /// # Errors
    /// As [`crate::TcpListener::accept`].
    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let accepted = std::future::poll_fn(|context| self.0.poll_accept(context)).await;
        accepted.map(|(stream, peer)| (TcpStream(stream), peer))
    }

    /// The listener as a blocking socket.
    pub fn get_ref(&self) -> &crate::TcpListener {
        &self.0
    }
}

/// A UDP socket.
#[derive(Clone, Debug)]
pub struct UdpSocket(crate::UdpSocket);

impl UdpSocket {
    /// See [`crate::UdpSocket::bind`].
    ///
    /// # Errors
    /// As [`crate::UdpSocket::bind`].
    pub fn bind(net: &Net, address: SocketAddr) -> io::Result<UdpSocket> {
        crate::UdpSocket::bind(net, address).map(UdpSocket)
    }

    /// Sends a datagram.
    ///
    /// # Errors
    /// As [`crate::UdpSocket::send_to`].
    pub async fn send_to(&self, bytes: &[u8], to: SocketAddr) -> io::Result<usize> {
        std::future::poll_fn(|context| self.0.poll_send_to(context, bytes, to)).await
    }

    /// Waits for a datagram; returns its length, cut to that of `out`, and its sender.
    ///
    /// # Errors
    /// As [`crate::UdpSocket::recv_from`].
    pub async fn recv_from(&self, out: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        std::future::poll_fn(|context| self.0.poll_recv_from(context, out)).await
    }

    /// The socket as a blocking socket.
    pub fn get_ref(&self) -> &crate::UdpSocket {
        &self.0
    }
}
