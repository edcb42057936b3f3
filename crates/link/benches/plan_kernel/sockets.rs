//! What many sockets cost against one plan.

use super::bed::{Bed, binding, connection, filter};
use super::live::{Bench, DST, SRC, flat};
use super::packet;
use super::receivers::Receiver;
use super::runs::drain;
use super::table::{Table, ns};
use std::error::Error;
use std::sync::atomic::Ordering;
use std::time::Duration;
use weir_demux::kernel::Hook as PlanHook;
use weir_filter::backend::cbpf;
use weir_filter::lang::expr::{Context, compile};
use weir_filter::opt::optimise;
use weir_lab::load::{Sink, Udp};
use weir_lab::results::{Bar, Recorder, Unit};
use weir_lab::rules::{FiveTuple, UDP};
use weir_link::bpf::Hook;
use weir_link::live::Dispatcher;
use weir_wire::LinkType;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// A connection of the generator's frames, and others beside it.
pub(crate) fn tuple(number: u32) -> FiveTuple {
    FiveTuple {
        src: SRC.to_bits(),
        dst: DST.to_bits(),
        src_port: 1024,
        dst_port: 5000 + number as u16,
        protocol: UDP,
    }
}

pub(crate) fn sockets(results: &Recorder) -> Result<()> {
    let mut table = Table::new(
        "N programs with a connection each: ns per frame, sending and receiving",
        &[
            "N",
            "weir: nobody's",
            "one's",
            "sockets: nobody's",
            "one's",
            "× without sending",
        ],
    );
    let sending = {
        let bench = Bench::new()?;
        let sink = Sink::new(&bench.to, Hook::XdpNative)?;
        let cost = flat(&bench, &bench.frames(60), Duration::from_millis(300))?;
        assert!(sink.counted()?.frames > 0);
        cost
    };
    println!("\n(sending alone, into a sink: {sending:.0} ns)");
    for count in [1, 10, 100, 1_000_u32] {
        let time = Duration::from_millis(if count < 100 { 300 } else { 1_000 });
        let at = |bench: &Bench, number: u32| Udp {
            dst_port: 5000 + number as u16,
            ..bench.frames(60)
        };
        let [none, one] = {
            let bench = Bench::new()?;
            let mut bed = Bed::new(PlanHook::Xdp, count, 1 << 16);
            for number in 0..count {
                let filter = filter(&connection(&tuple(number)));
                // The one whose frames come has the first port, whose ring is large:
                // a full one would cost it other than a frame.
                let port = (number + count - count / 2) % count;
                bed.bind(binding(filter, false, port, number));
            }
            let attach = || Dispatcher::attach(bench.to.index(), Hook::XdpNative, None);
            let dispatcher = bench.to.host().run(attach)?;
            dispatcher.set(&bed.load(PlanHook::Xdp))?;
            let mut reader = bed.reader(0);
            let _receiver = Receiver::start("", Vec::new(), move |stop, _| {
                while !stop.load(Ordering::Relaxed) {
                    let _ = reader.wait(Some(Duration::from_millis(20)));
                    drain(&mut reader);
                }
                0
            });
            let costs = [count + 50, count / 2].map(|n| flat(&bench, &at(&bench, n), time));
            _receiver.end();
            let [none, one] = costs;
            [none?, one?]
        };
        let [socket_none, socket_one] = {
            let bench = Bench::new()?;
            let index = bench.to.index();
            let mut sockets = Vec::new();
            for number in 0..count {
                let mut program =
                    compile(&connection(&tuple(number)), &Context::new(LinkType::EN10MB))?;
                optimise(&mut program);
                let filter = cbpf::emit(&program)?;
                sockets.push(bench.to.host().run(|| packet::filtered(index, &filter))?);
            }
            let read = sockets[count as usize / 2].try_clone()?;
            let receiver = Receiver::start("", Vec::new(), move |stop, _| {
                let mut bytes = [0; 2048];
                rustix::net::sockopt::set_socket_timeout(
                    &read,
                    rustix::net::sockopt::Timeout::Recv,
                    Some(Duration::from_millis(20)),
                )
                .expect("a socket has time-outs");
                while !stop.load(Ordering::Relaxed) {
                    let _ = rustix::io::read(&read, &mut bytes);
                }
                0
            });
            let costs = [count + 50, count / 2].map(|n| flat(&bench, &at(&bench, n), time));
            receiver.end();
            let [none, one] = costs;
            [none?, one?]
        };
        let times = |weir: f64, socket: f64| (socket - sending) / (weir - sending).max(1.0);
        table.row(&[
            count.to_string(),
            ns(none),
            ns(one),
            ns(socket_none),
            ns(socket_one),
            format!(
                "{:.1} and {:.1}",
                times(none, socket_none),
                times(one, socket_one)
            ),
        ]);
        let bar = if count == 1_000 {
            Bar::AtLeast(100.0)
        } else {
            Bar::None
        };
        for (what, weir, socket) in [("nobody's", none, socket_none), ("one's", one, socket_one)] {
            let name = format!("kernel plan: {count} programs, {what} frame");
            let sockets = Unit::RateOf("packet sockets");
            results.record(&name, times(weir, socket), sockets, bar);
        }
    }
    table.print();
    Ok(())
}
