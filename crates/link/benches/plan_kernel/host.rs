//! What the host's own TCP keeps beside a listener that copies, and hears
//! nothing.

use super::bed::{Bed, binding, filter};
use super::table::{Table, median};
use std::error::Error;
use std::net::Ipv4Addr;
use std::time::Duration;
use weir_demux::kernel::Hook as PlanHook;
use weir_lab::net::traffic::bulk_on;
use weir_lab::net::{Device, Lab, Offloads};
use weir_lab::results::{Bar, Recorder, Unit};
use weir_link::bpf::Hook;
use weir_link::live::Dispatcher;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

/// Each setting has a turn in each; the first one is another's in each.
const ROUNDS: usize = 21;
const TURN: Duration = Duration::from_millis(150);

/// A listener as `weir listen` opens one: at tc, both ways.
struct Listener {
    _bed: Bed,
    _hooks: Vec<Dispatcher>,
}

fn listen(device: &Device, hooks: &[(Hook, PlanHook)]) -> Result<Listener> {
    let mut attached = Vec::new();
    let mut bed = Bed::new(PlanHook::TcIngress, 1, 1 << 20);
    bed.bind(binding(filter("udp port 53"), true, 0, 1));
    for (hook, on) in hooks {
        let program = bed.load(*on);
        let attach = || Dispatcher::attach_with(device.index(), *hook, None, Some(&program));
        attached.push(device.host().run(attach)?);
    }
    Ok(Listener {
        _bed: bed,
        _hooks: attached,
    })
}

const TC: [(Hook, PlanHook); 2] = [
    (Hook::TcIngress, PlanHook::TcIngress),
    (Hook::TcEgress, PlanHook::TcEgress),
];

pub(crate) fn throughput(results: &Recorder) -> Result<()> {
    measure("as a host has them", Offloads::VETH, results)?;
    measure("off", Offloads::OFF, results)
}

fn measure(what: &str, offloads: Offloads, results: &Recorder) -> Result<()> {
    let lab = Lab::new();
    let (a, b) = (lab.host("a")?, lab.host("b")?);
    let link = lab.link(&a, &b).addresses([10, 0, 0, 1], SERVER, 24);
    let (from, to) = link.offloads(offloads).neighbours().connect()?;
    type Start<'a> = Box<dyn Fn() -> Result<Option<Listener>> + 'a>;
    let settings: [(&str, Start<'_>); 4] = [
        ("nothing", Box::new(|| Ok(None))),
        (
            "a listener where it arrives",
            Box::new(|| listen(&to, &TC).map(Some)),
        ),
        (
            "a listener where it is sent",
            Box::new(|| listen(&from, &TC).map(Some)),
        ),
        (
            "a listener of what arrives only",
            Box::new(|| listen(&to, &TC[..1]).map(Some)),
        ),
    ];
    let mut rates = vec![Vec::new(); settings.len()];
    for round in 0..ROUNDS {
        for turn in 0..settings.len() {
            let place = (round + turn) % settings.len();
            let _listener = settings[place].1()?;
            let sent = bulk_on((&a, 0), (&b, 1), (SERVER, 7_000), TURN)?;
            rates[place].push(sent.bits_per_second() / 1e9);
        }
    }
    let title =
        format!("The host's own TCP over a veth, offloads {what}, beside an idle copying listener");
    let columns = [
        "attached",
        "Gb/s, median",
        "best",
        "× nothing, median of rounds",
    ];
    let mut table = Table::new(&title, &columns);
    for ((name, _), own) in settings.iter().zip(&rates) {
        let best = own.iter().copied().fold(0.0, f64::max);
        // A round's turns ran one after the other: their ratios go together.
        let ratios = own.iter().zip(&rates[0]).map(|(own, bare)| own / bare);
        let ratio = median(ratios);
        table.row(&[
            (*name).into(),
            format!("{:.1}", median(own.iter().copied())),
            format!("{best:.1}"),
            format!("{ratio:.2}"),
        ]);
        if *name != settings[0].0 {
            let name = format!("kernel plan: the host's own TCP, offloads {what}, beside {name}");
            results.record(
                &name,
                ratio,
                Unit::RateOf("nothing attached"),
                Bar::AtLeast(0.9),
            );
        }
    }
    table.print();
    Ok(())
}
