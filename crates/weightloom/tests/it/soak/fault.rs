//! What goes wrong around a process, and how processes end.

use std::fs::File;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::train::interruptions::Dice;
use crate::train::place::Place;

/// Longer than any command takes.
const LIMIT: Duration = Duration::from_secs(180);

/// The exit code of a shell that may not mount.
const NOT_ALLOWED: i32 = 99;

/// What happens to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    /// SIGKILL at a random moment.
    Kill,
    /// A signal that asks to end, at a random moment.
    Signal(&'static str),
    /// Files cannot grow beyond a few KiB, as on a full disk.
    FullDisk,
    /// Address space for less than the command needs, or hardly more.
    Memory,
    /// A folder is read-only.
    ReadOnly(&'static str),
    /// Stdout takes nothing.
    FullStdout,
}

impl Fault {
    pub fn random(dice: &mut Dice, folder: &'static str) -> Self {
        match dice.below(12) {
            0..=4 => Self::Kill,
            5 => Self::Signal(["TERM", "INT", "HUP", "USR1"][dice.below(4) as usize]),
            6 => Self::FullDisk,
            7 => Self::Memory,
            8 => Self::ReadOnly(folder),
            9 => Self::FullStdout,
            _ => Self::None,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Kill => "SIGKILL",
            Self::Signal(_) => "signal",
            Self::FullDisk => "full disk",
            Self::Memory => "memory limit",
            Self::ReadOnly(_) => "read-only folder",
            Self::FullStdout => "full stdout",
        }
    }

    /// What the shell does before the command.
    fn set_up(self, dice: &mut Dice) -> String {
        match self {
            Self::FullDisk => format!("trap '' XFSZ; ulimit -f {}", 4 + dice.below(60)),
            Self::Memory => format!("ulimit -v {}", 20_000 + dice.below(400_000)),
            Self::ReadOnly(folder) => format!(
                "mkdir -p {folder} && mount --bind {folder} {folder} 2>/dev/null && \
                 mount -o remount,bind,ro {folder} 2>/dev/null || exit {NOT_ALLOWED}"
            ),
            _ => ":".to_owned(),
        }
    }

    /// Starts a command with the fault around it.
    pub fn start(self, place: &Place, dice: &mut Dice, arguments: &[&str]) -> Child {
        let command = place.plain_command();
        let script = format!("{}; exec \"$@\"", self.set_up(dice));
        let mut shell = match self {
            // Mounts that only the command sees.
            Self::ReadOnly(_) => Command::new("unshare"),
            _ => Command::new("sh"),
        };
        if matches!(self, Self::ReadOnly(_)) {
            shell.args(["-m", "sh"]);
        }
        shell.args(["-c", &script, "sh"]).arg(command.get_program()).args(arguments);
        shell.env_clear().current_dir(place.path(""));
        shell.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        shell.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("WEIGHTLOOM_CACHE_DIR", place.path("cache"));
        let stdout = match self {
            Self::FullStdout => File::options().write(true).open("/dev/full").unwrap().into(),
            _ => Stdio::piped(),
        };
        shell.stdout(stdout).stderr(Stdio::piped()).spawn().unwrap()
    }
}

/// How a process ended.
#[derive(Debug)]
pub struct Ended {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Ended {
    /// Waits for a process, and strikes it on the way.
    pub fn wait(mut child: Child, fault: Fault, moment: Duration) -> Self {
        let (out, err) = (reader(child.stdout.take()), reader(child.stderr.take()));
        let begun = Instant::now();
        let mut struck = false;
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if !struck && begun.elapsed() >= moment {
                struck = true;
                match fault {
                    Fault::Kill => child.kill().unwrap(),
                    Fault::Signal(name) => crate::train::interruptions::signal(&child, name),
                    _ => {}
                }
            }
            if begun.elapsed() > LIMIT {
                child.kill().unwrap();
                panic!("a command hangs under {fault:?}");
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        Self { status, stdout: out.join().unwrap(), stderr: err.join().unwrap() }
    }

    /// Whether the fault could be injected.
    pub fn was_allowed(&self) -> bool {
        self.status.code() != Some(NOT_ALLOWED) && !self.stderr.contains("unshare: ")
    }

    /// Asserts that the exit code is one that the fault explains, and not success by
    /// mistake; whether it succeeded.
    pub fn check(&self, fault: Fault) -> bool {
        use std::os::unix::process::ExitStatusExt as _;

        let explained = match (self.status.code(), self.status.signal()) {
            (Some(0), _) => fault != Fault::FullStdout,
            (Some(75), _) => matches!(fault, Fault::Signal(_)),
            (Some(1..=3), _) => {
                let limited =
                    matches!(fault, Fault::FullDisk | Fault::Memory | Fault::ReadOnly(_) | Fault::FullStdout);
                limited && self.stderr.contains("error")
            }
            // Without memory, a program can only stop: by the allocator, or because a
            // thread cannot be started.
            (Some(101 | 126 | 127), _) => fault == Fault::Memory,
            (_, Some(6 | 9 | 11)) if fault == Fault::Memory => true,
            (_, Some(9)) => fault == Fault::Kill,
            // Before the handlers are there, and in commands that have none.
            (_, Some(1 | 2 | 10 | 15)) => matches!(fault, Fault::Signal(_)),
            _ => false,
        };
        assert!(explained, "{fault:?}: {self:?}");
        self.status.success()
    }
}

fn reader(pipe: Option<impl std::io::Read + Send + 'static>) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            pipe.read_to_end(&mut bytes).unwrap();
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}
