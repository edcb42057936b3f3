//! Sockets in tasks of tokio.
#![cfg(feature = "tokio")]

mod common;

use common::{V4, bytes, config, ip, nets};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use weir_socket::tokio::{TcpListener, TcpStream, UdpSocket};
use weir_socket::{Net, link};

/// Two nets of this many stacks.
fn sharded(shards: usize) -> (Net, Net) {
    let (a, b) = link::mem().unwrap();
    let net = |link, number| {
        let builder = Net::builder().link(link, &config(number)).shards(shards);
        builder.start().unwrap()
    };
    (net(a, 0), net(b, 1))
}

#[tokio::test]
async fn tasks_exchange_bytes() {
    exchange(1).await;
}

/// A listener's tasks are woken by whichever stack has a connection, and each
/// connection's by its own.
#[tokio::test]
async fn tasks_exchange_bytes_with_several_shards() {
    exchange(4).await;
}

async fn exchange(shards: usize) {
    let (a, b) = sharded(shards);
    let at = SocketAddr::new(ip(V4[1]), 80);
    let listener = TcpListener::bind(&b, at).unwrap();
    let server = tokio::spawn(async move {
        let mut handled = Vec::new();
        let mut used = BTreeSet::new();
        for _ in 0..20 {
            let (mut stream, _) = listener.accept().await.unwrap();
            used.insert(stream.get_ref().shard());
            handled.push(tokio::spawn(async move {
                let mut all = Vec::new();
                stream.read_to_end(&mut all).await.unwrap();
                stream.write_all(&all).await.unwrap();
                stream.shutdown().await.unwrap();
            }));
        }
        for one in handled {
            one.await.unwrap();
        }
        // That all 20 are one shard's happens once in 10^11 times.
        assert_eq!(used.len() > 1, shards > 1, "{used:?}");
    });
    let mut clients = Vec::new();
    for n in 0..20_usize {
        let a = a.clone();
        clients.push(tokio::spawn(async move {
            let mut stream = TcpStream::connect(&a, at).await.unwrap();
            let sent = bytes(n * 20_000);
            stream.write_all(&sent).await.unwrap();
            stream.shutdown().await.unwrap();
            let mut heard = Vec::new();
            stream.read_to_end(&mut heard).await.unwrap();
            assert!(heard == sent, "{n}");
        }));
    }
    for client in clients {
        client.await.unwrap();
    }
    server.await.unwrap();
}

#[tokio::test]
async fn tasks_give_up_and_are_refused() {
    let (a, b) = nets();
    let at = SocketAddr::new(ip(V4[1]), 80);
    let error = TcpStream::connect(&a, at).await.err().unwrap();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
    let listener = TcpListener::bind(&b, at).unwrap();
    let patience = Duration::from_millis(30);
    assert!(
        tokio::time::timeout(patience, listener.accept())
            .await
            .is_err()
    );
    let mut client = TcpStream::connect(&a, at).await.unwrap();
    let (mut server, _) = listener.accept().await.unwrap();
    let mut heard = [0; 3];
    assert!(
        tokio::time::timeout(patience, server.read(&mut heard))
            .await
            .is_err()
    );
    client.write_all(b"now").await.unwrap();
    server.read_exact(&mut heard).await.unwrap();
    assert_eq!(&heard, b"now");
}

#[tokio::test]
async fn datagrams_wake_tasks() {
    for shards in [1, 3] {
        let (a, b) = sharded(shards);
        echo_datagrams(a, b).await;
    }
}

async fn echo_datagrams(a: Net, b: Net) {
    let server = UdpSocket::bind(&b, SocketAddr::new(ip(V4[1]), 7)).unwrap();
    let client = UdpSocket::bind(&a, SocketAddr::new(ip(V4[0]), 0)).unwrap();
    let echo = tokio::spawn(async move {
        let mut heard = [0; 100];
        let (count, from) = server.recv_from(&mut heard).await.unwrap();
        server.send_to(&heard[..count], from).await.unwrap();
    });
    let to = SocketAddr::new(ip(V4[1]), 7);
    client.send_to(b"hello", to).await.unwrap();
    let mut heard = [0; 100];
    let (count, from) = client.recv_from(&mut heard).await.unwrap();
    assert_eq!((&heard[..count], from), (&b"hello"[..], to));
    echo.await.unwrap();
}
