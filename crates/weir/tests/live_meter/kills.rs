//! Kills at random moments: of a counter that starts, counts, cuts, stores or delivers.
//!
//! `WEIR_RUNS=1000` is the soak; `WEIR_SEED=n` replays a kill.

use super::{meter, packets, write_config};
use crate::common::{Folder, stdout, weir};
use crate::net;
use std::fs;
use std::time::Duration;
use weir_lab::net::Signal;
use weir_lab::rng::Rng;
use weir_lab::seeds::seeds;

#[test]
fn random_kills_lose_and_double_nothing() {
    let Some(net) = net() else { return };
    let folder = Folder::new("live-meter-kills");
    let list = "subscriber,keys\nalice,10.0.0.1\n";
    fs::write(folder.path("subscribers.csv"), list).unwrap();
    let config = write_config(&folder, "subscribers = \"subscribers.csv\"");
    let store = folder.path("usage.db");
    // From here on the kernel counts.
    let mut running = Some(meter(&net, &folder, &[]));
    let mut sent = 0;
    for seed in seeds(10) {
        let mut rng = Rng::new(seed);
        let mut send = |rng: &mut Rng| {
            let count = rng.within(1..400);
            net.send(9, count);
            sent += u64::from(count);
        };
        let process = running.take().unwrap_or_else(|| {
            let arguments = ["meter", "--config", &config, "--store", &store];
            let process = net.weir(&arguments);
            // Some are killed while they start.
            if rng.chance(60) {
                process.until("ready")
            } else {
                process
            }
        });
        for _ in 0..rng.within(1..4) {
            send(&mut rng);
            let pause = rng.within(0..700);
            std::thread::sleep(Duration::from_millis(pause.into()));
        }
        process.signal(Signal::KILL);
        process.end();
        send(&mut rng);
    }
    meter(&net, &folder, &[]).stop();
    assert_eq!(packets(&folder, "alice"), [sent, 0]);
    let proof = weir(["usage", "--store", &store, "--prove"]);
    let proof = { proof }.output().unwrap();
    assert!(proof.status.success(), "{}", stdout(&proof));
}
