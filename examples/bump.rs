//! A bump in the wire: every frame passes this program, which lets all but
//! telnet through. Whatever happens to it, the two links stay joined.

use weir_tap::{Bridge, Bypass, TapError, Verdict};

fn main() -> Result<(), TapError> {
    Bridge::between("eth1", "eth2")?
        .bypass(Bypass::Wire)
        .run(|frame, _| match frame.bytes().get(36..38) {
            Some([0, 23]) => Verdict::Drop,
            _ => Verdict::Forward,
        })?;
    Ok(())
}
