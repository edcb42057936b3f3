//! The keys' actions.

use super::app::{Action, App, Over, View};
use super::detail::Detail;
use super::follow::Followed;
use super::frames::Only;
use super::prompt::{Prompt, Purpose, Typed};
use super::sheet::Kind;
use crate::monitor::filter::Filter;
use crate::monitor::input::Input;
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use weir_monitor::{Digest, Flow};

/// All keys, for the help; without keys a paragraph.
pub(super) const HELP: [(&str, &str); 21] = [
    (
        "1 … 7, Tab",
        "overview, talkers, conversations, protocols, ports, processes, frames",
    ),
    ("Up Down PgUp PgDn Home End", "move; also k j g G"),
    ("Left Right, < >", "sort by another column"),
    ("i", "invert the order"),
    ("/ n", "search in the table or the frames; search on"),
    ("Enter", "frames of the row; fields and bytes of the frame"),
    ("F", "follow the connection"),
    (
        "f",
        "filter, in pcap language: the list follows as you type, Enter filters the counts too",
    ),
    ("c", "clear the list's filter"),
    (
        "Space",
        "pause the replay, or freeze the tables of an interface",
    ),
    ("+ -", "replay faster, slower"),
    ("R", "begin anew: the file, or the counts of an interface"),
    ("r", "record to a file, or end recording"),
    ("w", "save the frames of the list"),
    ("t", "in a frame: tshark's fields, or weir's"),
    ("x", "in a connection: hex, or text"),
    ("[ ]", "in a frame: the one before, the next one"),
    (
        "Esc",
        "leave a window: this help, a frame, a connection; in the list of a row's frames: all frames",
    ),
    ("q", "leave a window; in a view: end the monitor"),
    ("Ctrl-L Ctrl-Z Ctrl-C", "draw anew; suspend; end"),
    (
        "",
        "Talkers, conversations and protocols have at most 100,000 rows; what exceeds that is counted as \
         `others`. Ports are weir's: each with its filter, its owner and the frames it lost; other \
         users' ports are shown to root. A process is found by its socket, if /proc permits. Frames are \
         kept as far as --keep allows; the oldest go first. Lost frames are those for which the port's \
         queue had no room: give a greater --queue, or -s.",
    ),
];

/// Handles a key.
pub(super) fn key(app: &mut App, key: KeyEvent) -> Action {
    let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
    if is_control {
        match key.code {
            KeyCode::Char('z') => return Action::Suspend,
            KeyCode::Char('l') => return Action::Redraw,
            KeyCode::Char('c') if app.prompt.is_none() => return Action::Quit,
            _ => {}
        }
    }
    if app.prompt.is_some() {
        typed(app, key);
        return Action::Nothing;
    }
    if is_control {
        return Action::Nothing;
    }
    match app.over {
        Over::Nothing => view_key(app, key),
        _ => {
            over_key(app, key);
            Action::Nothing
        }
    }
}

/// Steps of a key that moves; `None` for another key.
fn steps(app: &App, code: KeyCode) -> Option<isize> {
    let page = app.page.max(2) as isize - 1;
    Some(match code {
        KeyCode::Up | KeyCode::Char('k') => -1,
        KeyCode::Down | KeyCode::Char('j') => 1,
        KeyCode::PageUp => -page,
        KeyCode::PageDown => page,
        KeyCode::Home | KeyCode::Char('g') => isize::MIN,
        KeyCode::End | KeyCode::Char('G') => isize::MAX,
        _ => return None,
    })
}

fn over_key(app: &mut App, key: KeyEvent) {
    let was_help = matches!(app.over, Over::Help(_));
    let steps = steps(app, key.code);
    match (&mut app.over, key.code) {
        (Over::Help(offset), _) if steps.is_some() => {
            *offset = offset.saturating_add_signed(steps.unwrap_or(0));
        }
        (_, KeyCode::Esc | KeyCode::Char('q')) | (Over::Help(_), _) => app.over = Over::Nothing,
        (Over::Detail(detail), KeyCode::Char('t')) => {
            if let Some(news) = detail.toggle_tshark(&app.session) {
                app.say(news);
            }
        }
        (Over::Detail(_), KeyCode::Char('F')) => follow(app),
        (Over::Detail(_), KeyCode::Char('[')) => neighbour(app, -1),
        (Over::Detail(_), KeyCode::Char(']')) => neighbour(app, 1),
        (Over::Detail(detail), KeyCode::Enter | KeyCode::Left | KeyCode::Right) => detail.toggle(),
        (Over::Detail(detail), _) => detail.go(steps.unwrap_or(0)),
        (Over::Follow(follow), KeyCode::Char('x')) => follow.toggle(),
        (Over::Follow(follow), _) => follow.go(steps.unwrap_or(0)),
        (Over::Nothing, _) => {}
    }
    match key.code {
        KeyCode::Char('?') if !was_help => app.over = Over::Help(0),
        KeyCode::Char('w') if !was_help => save_prompt(app),
        _ => {}
    }
}

/// Shows the frame before or behind.
fn neighbour(app: &mut App, by: i64) {
    app.frames.go(&app.session.store, by);
    open_frame(app);
}

fn view_key(app: &mut App, key: KeyEvent) -> Action {
    if let Some(steps) = steps(app, key.code) {
        match app.view {
            View::Sheet(number) => app.sheets[number].go(steps),
            View::Frames => app.frames.go(&app.session.store, steps as i64),
            View::Overview => {}
        }
        return Action::Nothing;
    }
    match key.code {
        KeyCode::Char('q') => return Action::Quit,
        KeyCode::Char('?' | 'h') => app.over = Over::Help(0),
        KeyCode::Char(digit @ '1'..='7') => turn(app, digit as usize - '1' as usize),
        KeyCode::Tab => turn(app, (place(app) + 1) % 7),
        KeyCode::BackTab => turn(app, (place(app) + 6) % 7),
        KeyCode::Left | KeyCode::Char('<') => sort(app, -1),
        KeyCode::Right | KeyCode::Char('>') => sort(app, 1),
        KeyCode::Char('i') => {
            if let View::Sheet(number) = app.view {
                app.sheets[number].is_descending ^= true;
                app.sheets[number].refresh(&app.session);
            }
        }
        KeyCode::Char('/') => app.prompt = Some(Prompt::new(Purpose::Search, "")),
        KeyCode::Char('n') => search(app),
        KeyCode::Char('f') => {
            app.filter_before = app.frames.filter().to_owned();
            let text = if app.filter_before.is_empty() {
                app.input.filter().to_owned()
            } else {
                app.filter_before.clone()
            };
            app.prompt = Some(Prompt::new(Purpose::Filter, &text));
        }
        KeyCode::Char('c') => {
            app.frames.set_filter("");
            app.frames.set_only(None);
        }
        KeyCode::Esc if app.view == View::Frames => app.frames.set_only(None),
        KeyCode::Enter => enter(app),
        KeyCode::Char('F') => follow(app),
        KeyCode::Char(' ') => match app.input.replay() {
            Some(replay) => replay.pause(),
            None => app.is_frozen ^= true,
        },
        KeyCode::Char('+' | '=') => speed(app, true),
        KeyCode::Char('-') => speed(app, false),
        KeyCode::Char('R') => begin_anew(app),
        KeyCode::Char('r') => record(app),
        KeyCode::Char('w') => save_prompt(app),
        _ => {}
    }
    Action::Nothing
}

fn place(app: &App) -> usize {
    match app.view {
        View::Overview => 0,
        View::Sheet(number) => number + 1,
        View::Frames => 6,
    }
}

fn turn(app: &mut App, place: usize) {
    app.view = match place {
        0 => View::Overview,
        6 => View::Frames,
        sheet => View::Sheet(sheet - 1),
    };
    app.refresh();
}

fn sort(app: &mut App, by: isize) {
    if let View::Sheet(number) = app.view {
        let sheet = &mut app.sheets[number];
        let columns = sheet.kind.columns();
        let count = columns.len() as isize;
        sheet.sort = (sheet.sort as isize + by).rem_euclid(count) as usize;
        // Numbers from the greatest, names from the first.
        sheet.is_descending = columns[sheet.sort].is_number;
        sheet.refresh(&app.session);
    }
}

fn speed(app: &mut App, faster: bool) {
    if let Some(replay) = app.input.replay() {
        replay.change_speed(faster);
        let speed = replay.speed;
        app.say(format!("speed {speed}"));
    }
}

fn begin_anew(app: &mut App) {
    let text = app.input.filter().to_owned();
    let begun = match &mut app.input {
        Input::File(replay) => replay.restart(&mut app.session),
        Input::Live(_) => app.input.set_filter(&text, &mut app.session),
    };
    app.restarted();
    if let Err(why) = begun {
        app.say(why);
    }
}

fn enter(app: &mut App) {
    match app.view {
        View::Frames => open_frame(app),
        View::Sheet(number) => {
            let Some(row) = app.sheets[number].selected_row() else {
                return;
            };
            let model = &app.session.model;
            let only = match app.sheets[number].kind {
                Kind::Talkers => model
                    .talkers()
                    .rows()
                    .get(row)
                    .map(|row| Only::Host(row.key)),
                Kind::Conversations => model
                    .conversations()
                    .rows()
                    .get(row)
                    .map(|row| Only::Flow(row.key)),
                _ => None,
            };
            if only.is_some() {
                app.frames.set_only(only);
                app.view = View::Frames;
            }
        }
        View::Overview => {}
    }
}

fn open_frame(app: &mut App) {
    if let Some(kept) = app.frames.current(&app.session.store) {
        app.frames.selected = kept.number;
        app.frames.is_tail = false;
        app.over = Over::Detail(Box::new(Detail::new(&kept, &mut app.views)));
    }
}

/// The conversation of the selection.
fn selected_flow(app: &App) -> Option<Flow> {
    match (&app.over, app.view) {
        (Over::Detail(detail), _) => {
            let kept = app.session.store.get(detail.number)?;
            Some(Digest::of(kept.bytes, kept.meta.linktype).flow().0)
        }
        (_, View::Frames) => {
            let kept = app.frames.current(&app.session.store)?;
            Some(Digest::of(kept.bytes, kept.meta.linktype).flow().0)
        }
        (_, View::Sheet(number)) if app.sheets[number].kind == Kind::Conversations => {
            let row = app.sheets[number].selected_row()?;
            app.session
                .model
                .conversations()
                .rows()
                .get(row)
                .map(|row| row.key)
        }
        _ => None,
    }
}

fn follow(app: &mut App) {
    let followed = selected_flow(app).and_then(|flow| Followed::new(&app.session, flow));
    match followed {
        Some(followed) => app.over = Over::Follow(Box::new(followed)),
        None => app.say("select a conversation or a frame of TCP or UDP to follow"),
    }
}

fn search(app: &mut App) {
    let text = app.searched.clone();
    if text.is_empty() {
        return;
    }
    let found = match app.view {
        View::Sheet(number) => app.sheets[number].search(&app.session, &text),
        View::Frames => app.frames.search(&app.session.store, &text),
        View::Overview => false,
    };
    if !found {
        app.say(format!("`{text}` is not found"));
    }
}

fn record(app: &mut App) {
    if app.session.recording().is_none() {
        app.prompt = Some(Prompt::new(Purpose::Record, "weir.pcapng"));
    } else if let Err(error) = app.session.end_recording() {
        app.say(error.to_string());
    }
}

fn save_prompt(app: &mut App) {
    app.prompt = Some(Prompt::new(Purpose::Save, "frames.pcapng"));
}

/// A key of the line that is typed.
fn typed(app: &mut App, key: KeyEvent) {
    let Some(mut prompt) = app.prompt.take() else {
        return;
    };
    let text = match prompt.key(key) {
        Typed::Cancelled => {
            if prompt.purpose == Purpose::Filter && app.frames.filter() != app.filter_before {
                let before = app.filter_before.clone();
                app.frames.set_filter(&before);
            }
            return;
        }
        Typed::Done => prompt.text().trim().to_owned(),
        Typed::Changed | Typed::Moved => {
            if prompt.purpose == Purpose::Filter {
                let text = prompt.text().trim().to_owned();
                prompt.error = Filter::check(&text, app.input.linktype()).err();
                // With an error the last good filter stays.
                if prompt.error.is_none() && app.frames.filter() != text {
                    app.frames.set_filter(&text);
                }
            } else {
                prompt.error = None;
            }
            app.prompt = Some(prompt);
            return;
        }
    };
    let done = match prompt.purpose {
        Purpose::Filter => app.input.set_filter(&text, &mut app.session).map(|()| {
            // The frames that come are those of the filter.
            app.frames.set_filter("");
            app.restarted();
        }),
        Purpose::Search => {
            app.searched = text;
            search(app);
            Ok(())
        }
        Purpose::Record => App::new_file(&text).and_then(|path| {
            let stop = app.stop.clone();
            app.session
                .record(&path, &stop)
                .map_err(|error| error.to_string())
        }),
        Purpose::Save => save(app, &text),
    };
    if let Err(why) = done {
        // The line stays, to be corrected.
        prompt.error = Some(why);
        app.prompt = Some(prompt);
    }
}

fn save(app: &mut App, text: &str) -> Result<(), String> {
    let path = App::new_file(text)?;
    let App {
        session,
        frames,
        stop,
        ..
    } = app;
    let saved = session.save(&path, stop, |kept| frames.accepts(kept));
    let saved = saved.map_err(|error| error.to_string())?;
    let count = crate::report::format::frames(saved);
    app.say(format!("{}: {count} saved", path.display()));
    Ok(())
}
