//! Receiving in kernel threads.

use weir_lab::load::{Generator, Rate, Sink, Udp};
use weir_lab::net::Pair;
use weir_lab::{cpu, need};
use weir_link::bpf::Hook;

#[test]
fn a_thread_receives_what_is_sent_elsewhere() {
    if !need::root() {
        return;
    }
    let pair = Pair::new().expect("two hosts");
    let error = pair.eth_b.receive_in_threads().expect_err("nothing polls");
    assert!(error.to_string().contains("eth0"), "{error}");

    let sink = Sink::new(&pair.eth_b, Hook::XdpNative).expect("a sink");
    let threads = pair.eth_b.receive_in_threads().expect("it polls now");
    assert_eq!(threads.len(), 1, "one for each queue");
    cpu::pin(Some(threads[0]), 0).expect("a kernel's thread can be placed");

    let ran = || ran_ns(threads[0]);
    let before = ran();
    let udp = Udp::new(
        pair.eth_a.mac(),
        pair.eth_b.mac(),
        [10, 0, 0, 1].into(),
        [10, 0, 0, 2].into(),
    );
    let mut generator = Generator::new(&pair.eth_a, &udp).expect("a generator");
    let sent = generator
        .send(10_000, Rate::PerSecond(50_000.0))
        .expect("it sends");
    assert_eq!(
        sink.counted().expect("counts").frames + sent.dropped,
        10_000
    );
    assert!(ran() > before, "the thread received");
}

/// How long a thread has run, in nanoseconds.
fn ran_ns(thread: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{thread}/schedstat"));
    let text = text.expect("the kernel tells");
    let first = text.split(' ').next().expect("three numbers");
    first.parse().expect("a number")
}
