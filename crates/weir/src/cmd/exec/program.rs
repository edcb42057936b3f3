//! The program to be run, and why it may be impossible to give it weir's sockets.

use crate::error::CliError;
use elf::ElfStream;
use elf::abi::PT_INTERP;
use elf::endian::AnyEndian;
use elf::file::Class;
use rustix::fs::{Access, access, getxattr};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// How often a script may name another script as its interpreter (Linux' `BINPRM_MAX_RECURSION`).
const SCRIPTS_MAX: usize = 4;
/// Longest first line of a script that the kernel reads (Linux' `BINPRM_BUF_SIZE`).
const LINE_MAX: usize = 256;

/// A program that exists.
#[derive(Debug)]
pub(super) struct Program(PathBuf);

impl Program {
    /// The program of this name: a path, or a name in the folders of `PATH`.
    ///
    /// # Errors
    /// If there is none.
    pub(super) fn find(name: &OsStr) -> Result<Program, CliError> {
        let shown = Path::new(name).display();
        if name.as_bytes().contains(&b'/') {
            return match std::fs::metadata(name) {
                Ok(found) if found.is_file() => Ok(Program(PathBuf::from(name))),
                Ok(_) => Err(CliError::refused(format!("{shown} is not a program"))),
                Err(error) => Err(CliError::refused(format!("cannot run {shown}: {error}"))),
            };
        }
        let folders = std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
        let mut places = std::env::split_paths(&folders).map(|folder| folder.join(name));
        let found = places.find(|path| path.is_file() && access(path, Access::EXEC_OK).is_ok());
        found.map(Program).ok_or_else(|| {
            CliError::refused(format!(
                "there is no program `{shown}` in the folders of PATH: give its path"
            ))
        })
    }

    /// The program's path.
    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Refuses a program that cannot get weir's sockets: by traps of its calls, or else by a library that the
    /// dynamic linker loads.
    ///
    /// # Errors
    /// The reason.
    pub(super) fn check(&self, traps: bool) -> Result<(), CliError> {
        let mut path = self.0.clone();
        for _ in 0..=SCRIPTS_MAX {
            check_privilege(&path, traps)?;
            match kind(&path, traps)? {
                Kind::Script(interpreter) => path = interpreter,
                Kind::Binary => return Ok(()),
            }
        }
        Err(CliError::refused(format!(
            "{} is a script of a script of a script: run the interpreter itself",
            self.0.display()
        )))
    }
}

enum Kind {
    /// A program of this machine.
    Binary,
    /// A script, with the path of its interpreter.
    Script(PathBuf),
}

fn refused(path: &Path, why: &str) -> CliError {
    CliError::refused(format!("{} {why}", path.display()))
}

/// The dynamic linker loads no libraries for programs with the rights of another user, and a program whose
/// calls are trapped does not get them (`PR_SET_NO_NEW_PRIVS`).
fn check_privilege(path: &Path, traps: bool) -> Result<(), CliError> {
    let why = if traps {
        "a program whose calls are trapped gets no rights of another user"
    } else {
        "the dynamic linker loads no library into it"
    };
    let about = path
        .metadata()
        .map_err(|error| CliError::refused(format!("cannot run {}: {error}", path.display())))?;
    let (user, group) = (rustix::process::getuid(), rustix::process::getgid());
    if about.mode() & 0o4000 != 0 && about.uid() != user.as_raw() {
        return Err(refused(
            path,
            &format!("is set-user-ID: {why}; run it as its owner"),
        ));
    }
    if about.mode() & 0o2000 != 0 && about.mode() & 0o010 != 0 && about.gid() != group.as_raw() {
        return Err(refused(
            path,
            &format!("is set-group-ID: {why}; run it as its group"),
        ));
    }
    let mut value = [0; 64];
    if !user.is_root() && getxattr(path, "security.capability", &mut value).is_ok() {
        return Err(refused(
            path,
            &format!("has file capabilities (getcap): {why}; run a copy without them"),
        ));
    }
    Ok(())
}

fn kind(path: &Path, traps: bool) -> Result<Kind, CliError> {
    let cannot = |error: std::io::Error| {
        CliError::refused(format!("cannot read {}: {error}", path.display()))
    };
    let mut file = File::open(path).map_err(cannot)?;
    let mut start = Vec::new();
    let read = (&mut file).take(LINE_MAX as u64).read_to_end(&mut start);
    read.map_err(cannot)?;
    if let Some(line) = start.strip_prefix(b"#!") {
        let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let mut words = line.split(|byte| byte.is_ascii_whitespace());
        let interpreter = words.find(|word| !word.is_empty());
        return match interpreter {
            Some(interpreter) => Ok(Kind::Script(PathBuf::from(OsStr::from_bytes(interpreter)))),
            None => Err(refused(path, "is a script without an interpreter")),
        };
    }
    file.seek(SeekFrom::Start(0)).map_err(cannot)?;
    let unknown = |_| refused(path, "is neither an ELF program nor a script");
    let program = ElfStream::<AnyEndian, _>::open_stream(file).map_err(unknown)?;
    if program.ehdr.class != Class::ELF64 || program.ehdr.e_machine != machine() {
        return Err(refused(
            path,
            "is a program of another architecture: weir's sockets are for this one alone",
        ));
    }
    if traps {
        return Ok(Kind::Binary);
    }
    let linker = program
        .segments()
        .iter()
        .find(|one| one.p_type == PT_INTERP);
    let Some(linker) = linker.copied() else {
        return Err(refused(
            path,
            "is statically linked: no library can be loaded into it; give --all, which traps its calls, or \
             run a dynamically linked one",
        ));
    };
    let mut file = File::open(path).map_err(cannot)?;
    file.seek(SeekFrom::Start(linker.p_offset))
        .map_err(cannot)?;
    let mut name = Vec::new();
    let len = linker.p_filesz.min(4096);
    file.take(len).read_to_end(&mut name).map_err(cannot)?;
    let name = String::from_utf8_lossy(&name);
    let name = name.trim_end_matches('\0');
    if !name.contains("/ld-linux") {
        return Err(refused(
            path,
            &format!(
                "is linked by {name}: weir's library needs the GNU C library's dynamic linker; give \
                 --all, which traps the program's calls"
            ),
        ));
    }
    Ok(Kind::Binary)
}

/// This machine, as ELF numbers it.
fn machine() -> u16 {
    if cfg!(target_arch = "aarch64") {
        elf::abi::EM_AARCH64
    } else {
        elf::abi::EM_X86_64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// A file with these bytes and this mode, removed on drop.
    struct Made(PathBuf);

    impl Made {
        fn new(name: &str, bytes: &[u8], mode: u32) -> Made {
            let name = format!("weir-exec-{}-{name}", std::process::id());
            let path = std::env::temp_dir().join(name);
            std::fs::write(&path, bytes).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            Made(path)
        }

        fn refusal(&self) -> String {
            let found = Program::find(self.0.as_os_str()).unwrap();
            found.check(false).unwrap_err().to_string()
        }
    }

    impl Drop for Made {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    #[test]
    fn a_program_of_this_machine_is_accepted_and_so_is_its_script() {
        let own = std::env::current_exe().unwrap();
        let found = Program::find(own.as_os_str()).unwrap();
        found.check(false).unwrap();
        let script = format!("#! {} -x\n", own.display());
        let script = Made::new("script", script.as_bytes(), 0o755);
        Program::find(script.0.as_os_str())
            .unwrap()
            .check(false)
            .unwrap();
        assert!(Program::find(OsStr::new("sh")).is_ok());
    }

    #[test]
    fn what_cannot_work_says_why() {
        let text = Made::new("text", b"echo hello\n", 0o755);
        assert!(text.refusal().contains("neither an ELF program nor"));
        let own = std::fs::read("/bin/sh").unwrap();
        // Without the program headers there is no name of a dynamic linker.
        let mut linked = own.clone();
        linked[0x38..0x3a].fill(0);
        let fixed = Made::new("static", &linked, 0o755);
        assert!(
            fixed.refusal().contains("statically linked"),
            "{}",
            fixed.refusal()
        );
        let found = Program::find(fixed.0.as_os_str()).unwrap();
        found.check(true).unwrap();
        let mut other = own.clone();
        other[0x12] = 8;
        let other = Made::new("other", &other, 0o755);
        assert!(other.refusal().contains("another architecture"));
        let error = Program::find(OsStr::new("weir-no-such-program")).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("no program `weir-no-such-program`")
        );
        let error = Program::find(OsStr::new("/tmp")).unwrap_err();
        assert!(error.to_string().contains("is not a program"));
    }
}
