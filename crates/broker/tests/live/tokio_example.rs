//! The example of a port in tokio.

#[path = "../../../../examples/port_tokio.rs"]
#[allow(dead_code, reason = "its `main` runs by cargo")]
mod example;

use super::net::net;
use example::AsyncPort;
use std::time::Duration;
use weir_broker::Port;

/// Longest wait for the frames.
const WAIT_MAX: Duration = Duration::from_secs(30);

#[test]
fn a_task_gets_each_frame_once_between_other_tasks() {
    let Some(net) = net() else { return };
    let _server = net.server(53);
    net.b.run(|| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let port = Port::on(net.eth_b.name()).in_process();
        let port = port.filter("udp dst port 53").unwrap().open().unwrap();
        runtime.block_on(async {
            let mut port = AsyncPort::new(port).unwrap();
            let mut got: Vec<u32> = Vec::new();
            let mut tick = tokio::time::interval(Duration::from_millis(1));
            let (mut sent, mut idle) = (0, 0);
            let all = async {
                while got.len() < 500 {
                    tokio::select! {
                        frames = port.recv_batch() => {
                            for frame in frames.unwrap() {
                                assert_eq!(frame.lost_before(), 0);
                                // Behind the headers of Ethernet, IPv4 and UDP.
                                let number = frame.bytes()[42..46].try_into().unwrap();
                                got.push(u32::from_be_bytes(number));
                            }
                        },
                        // Its turn comes although frames may be there, and the wait for them is dropped.
                        _ = tick.tick() => {
                            idle += 1;
                            if sent < 500 {
                                net.send(53, 50);
                                sent += 50;
                            }
                        },
                    }
                }
            };
            tokio::time::timeout(WAIT_MAX, all)
                .await
                .expect("500 frames");
            assert!(idle >= 10, "{idle}");
            let expected: Vec<u32> = (0..10).flat_map(|_| 0..50).collect();
            assert_eq!(got, expected);
            // Nothing more comes, and the wait for it is one: it uses no processor.
            let more = tokio::time::timeout(Duration::from_millis(50), port.recv_batch()).await;
            assert!(more.is_err(), "a batch without frames");
        });
    });
}
