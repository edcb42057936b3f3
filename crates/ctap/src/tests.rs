//! Tests of the C functions.

use super::*;
use std::ptr::{null, null_mut};
use weir_lab::testenv;

/// Pointers that another thread uses: what the functions are to refuse.
#[derive(Clone, Copy)]
struct Pointers(*mut CTap, *mut CFrame);

// SAFETY: the functions compare the thread before they use what a pointer points to.
unsafe impl Send for Pointers {}

/// The message of a call that failed.
fn message() -> String {
    // SAFETY: the message lives until the thread's next failure.
    let text = unsafe { CStr::from_ptr(weir_error()) };
    text.to_string_lossy().into_owned()
}

#[test]
#[cfg_attr(miri, ignore = "a tap needs the kernel")]
fn every_function_refuses_another_threads_tap_and_frame() {
    if !testenv::root() {
        return;
    }
    // SAFETY: null is the default.
    let tap = unsafe { weir_map(null()) };
    assert!(!tap.is_null(), "{}", message());
    // SAFETY: a tap of this thread.
    assert_eq!(unsafe { weir_pull(tap, 1, 0) }, 1, "{}", message());
    // SAFETY: as above.
    let frame = unsafe { weir_alloc(tap) };
    assert!(!frame.is_null(), "{}", message());

    let all = Pointers(tap, frame);
    let refused = std::thread::spawn(move || {
        let Pointers(tap, frame) = { all };
        let (mut room, mut len) = (null_mut(), 0);
        let name = c"lo".as_ptr();
        let calls: [(&str, &mut dyn FnMut() -> bool); 14] = [
            // SAFETY: of all calls here, the pointers live, and the functions refuse them.
            ("share", &mut || unsafe { weir_share(tap, name) } == -1),
            // SAFETY: as above.
            (
                "unmap",
                &mut || unsafe { weir_unmap(tap, null_mut()) } == -1,
            ),
            // SAFETY: as above.
            ("pull", &mut || unsafe { weir_pull(tap, 1, 0) } == -1),
            // SAFETY: as above.
            ("push", &mut || unsafe { weir_push(tap) } == -1),
            // SAFETY: as above.
            ("tap", &mut || unsafe { weir_tap(tap, name) } == -1),
            // SAFETY: as above.
            ("untap", &mut || unsafe { weir_untap(tap, 0) } == -1),
            // SAFETY: as above.
            (
                "take",
                &mut || unsafe { weir_take(tap, 0, &mut room) } == -1,
            ),
            // SAFETY: as above.
            ("alloc", &mut || unsafe { weir_alloc(tap) }.is_null()),
            // SAFETY: as above.
            ("members", &mut || unsafe { weir_members(tap) } == -1),
            // SAFETY: as above.
            ("give", &mut || unsafe { weir_give(tap, 0, frame) } == -1),
            // SAFETY: as above.
            ("free", &mut || unsafe { weir_free(frame) } == -1),
            // SAFETY: as above.
            ("bytes", &mut || {
                unsafe { weir_bytes(frame, 0, &mut len) }.is_null()
            }),
            // SAFETY: as above.
            (
                "set",
                &mut || unsafe { weir_set(frame, [1].as_ptr(), 1) } == -1,
            ),
            // SAFETY: null is allowed.
            ("null", &mut || unsafe { weir_push(null_mut()) } == -1),
        ];
        for (name, call) in calls {
            failed("no message");
            assert!(call(), "{name}");
            assert_eq!(message(), OTHER_THREAD, "{name}");
        }
    });
    refused.join().unwrap();

    // Nothing was taken from the owner.
    // SAFETY: of this thread, and used for the last time each.
    unsafe {
        let mut len = 0;
        assert_eq!(weir_set(frame, b"frame".as_ptr(), 5), 0);
        assert!(!weir_bytes(frame, 0, &mut len).is_null());
        assert_eq!(len, 5);
        assert_eq!(weir_free(frame), 0);
        let mut census = CCensus {
            free: 0,
            process: 1,
            fill: 1,
            tx: 1,
        };
        assert_eq!(weir_unmap(tap, &mut census), 0);
        assert_eq!((census.process, census.fill, census.tx), (0, 0, 0));
        assert!(census.free > 0);
    }
}
