//! What the host's own TCP keeps beside a listener that copies, and hears
//! nothing.

use super::bed::{Bed, binding, filter};
use super::table::Table;
use std::error::Error;
use std::net::Ipv4Addr;
use std::time::Duration;
use weir_demux::kernel::Hook as PlanHook;
use weir_lab::net::talk::bulk;
use weir_lab::net::{Device, Lab, Offloads};
use weir_link::bpf::Hook;
use weir_link::live::Dispatcher;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

/// Each setting has a turn in each.
const ROUNDS: usize = 11;
const TURN: Duration = Duration::from_millis(300);

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

pub(crate) fn throughput() -> Result<()> {
    measure("as a host has them", Offloads::VETH)?;
    measure("off", Offloads::OFF)
}

fn measure(what: &str, offloads: Offloads) -> Result<()> {
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
    for _ in 0..ROUNDS {
        for ((_, start), rates) in settings.iter().zip(&mut rates) {
            let _listener = start()?;
            rates.push(bulk(&a, &b, (SERVER, 7_000), TURN)?.bits_per_second() / 1e9);
        }
    }
    let title =
        format!("The host's own TCP over a veth, offloads {what}, beside an idle copying listener");
    let columns = ["attached", "Gb/s, median", "best", "median ×", "best ×"];
    let mut table = Table::new(&title, &columns);
    let mut base = None;
    for ((name, _), mut rates) in settings.iter().zip(rates) {
        rates.sort_by(f64::total_cmp);
        let (median, best) = (rates[ROUNDS / 2], rates[ROUNDS - 1]);
        let (m, b) = *base.get_or_insert((median, best));
        table.row(&[
            (*name).into(),
            format!("{median:.1}"),
            format!("{best:.1}"),
            format!("{:.2}", median / m),
            format!("{:.2}", best / b),
        ]);
    }
    table.print();
    Ok(())
}
