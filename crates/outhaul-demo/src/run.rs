//! Both runs: set up, load and kills, end, count.

use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::{Instant, sleep_until};

use crate::count::{self, Course};
use crate::error::DemoError;
use crate::kills::{Victim, moments};
use crate::notes::now_us;
use crate::options::{Options, Strategy};
use crate::outcome::{Numbers, Outcome};
use crate::progress::Progress;
use crate::scene::Scene;
use crate::stage::{Programs, Stage};

/// Time between two looks at the processes and counts while a run is on.
const TICK: Duration = Duration::from_millis(250);

/// Shows the demo, with its progress on standard error, and returns the numbers. Must be awaited on a tokio runtime
/// with I/O and time.
///
/// Takes a little more than twice [`Options::seconds`]; every wait in it has a limit. On SIGINT and SIGTERM all
/// processes are ended and the folder is removed.
///
/// # Errors
/// The demo could not be shown: a process cannot be started or ended by itself, a database failed, the user stopped it.
/// Lost or doubled events are no error: [`Outcome::holds`] says whether the numbers are as they must be.
pub async fn run(options: Options) -> Result<Outcome, DemoError> {
    let seed = options.seed.unwrap_or_else(new_seed);
    let this = || std::env::current_exe().map_err(DemoError::process("this program's own path"));
    let programs = Programs {
        part: options.part_binary.clone().map_or_else(this, Ok)?,
        relay: options.relay_binary.clone().map_or_else(this, Ok)?,
        rate: options.rate,
        seed,
    };
    let folder = Folder::make(options.dir.as_deref(), seed)?;
    let played = play(&options, &programs, &folder.path).await;
    let kept = if options.keep { Some(folder.path.clone()) } else { None };
    if kept.is_none() {
        let removed = folder.remove();
        if played.is_ok() {
            removed?;
        }
    }
    let runs = played?;
    Ok(Outcome {
        seed,
        seconds: options.seconds,
        rate: options.rate,
        kills: options.kills,
        runs,
        folder: kept.map(|path| path.display().to_string()),
    })
}

async fn play(options: &Options, programs: &Programs, folder: &Path) -> Result<Vec<Numbers>, DemoError> {
    let strategies = [Strategy::CommitThenSend, Strategy::Outhaul];
    let mut runs = vec![];
    let mut interrupt = pin!(interrupted());
    let mut progress = Progress::new();
    progress.say(&format!(
        "seed {}; {} orders/s for {} s, {} kills, in {}",
        programs.seed,
        options.rate,
        options.seconds,
        options.kills,
        folder.display()
    ));
    for strategy in strategies.into_iter().filter(|s| options.only.is_none_or(|only| only == *s)) {
        let scene = tokio::select! {
            scene = Scene::set_up(folder.join(strategy.word()), strategy) => scene?,
            () = &mut interrupt => return Err(DemoError::Interrupted),
        };
        let mut stage = Stage::new(programs, &scene);
        // On the heap: the future of a run is a large one.
        let acted = tokio::select! {
            acted = Box::pin(act(options, &mut stage, &scene, &mut progress)) => acted,
            () = &mut interrupt => Err(DemoError::Interrupted),
        };
        if acted.is_err() {
            stage.clear().await;
        }
        let course = acted?;
        progress.show(&format!("{}: counting", strategy.title()));
        runs.push(count::count(&scene, &course)?);
    }
    progress.done();
    Ok(runs)
}

/// One run, from the first process to the end of the last.
async fn act(
    options: &Options,
    stage: &mut Stage<'_>,
    scene: &Scene,
    progress: &mut Progress,
) -> Result<Course, DemoError> {
    let duration = Duration::from_secs(u64::from(options.seconds));
    let with_relay = scene.strategy == Strategy::Outhaul;
    let mut plan: Vec<(Duration, Victim)> = vec![];
    for victim in [Victim::Service, Victim::Relay].into_iter().filter(|v| with_relay || *v == Victim::Service) {
        plan.extend(moments(stage.seed(), victim, options.kills, duration).into_iter().map(|moment| (moment, victim)));
    }
    plan.sort_by_key(|(moment, _)| *moment);

    stage.start_downstream().await?;
    let mut course = Course::default();
    if with_relay {
        stage.start_relay()?;
        course.relay_starts_us.push(now_us());
    }
    stage.start_service()?;
    let counts = count::Running::open(scene)?;
    let start = Instant::now();
    let end = start + duration;
    let mut next_tick = start;
    for (moment, victim) in plan.into_iter().map(|(m, v)| (start + m, Some(v))).chain([(end, None)]) {
        while next_tick < moment {
            sleep_until(next_tick).await;
            stage.all_must_run()?;
            progress.show(&counts.line(scene.strategy, start.elapsed(), duration, course.kills())?);
            next_tick += TICK;
        }
        sleep_until(moment).await;
        match victim {
            Some(Victim::Service) => {
                stage.kill_service().await?;
                course.service_kills += 1;
                stage.start_service()?;
            }
            Some(Victim::Relay) => {
                course.relay_kills_us.push(now_us());
                stage.kill_relay().await?;
                stage.start_relay()?;
                course.relay_starts_us.push(now_us());
            }
            None => stage.end_service().await?,
        }
    }
    course.load = start.elapsed();
    let settling = Instant::now();
    progress.show(&format!("{}: the service has ended, waiting for what is on its way", scene.strategy.title()));
    if with_relay {
        // The last kill: what a relay that is asked to end does is not to be a help here.
        course.relay_kills_us.push(now_us());
        stage.kill_relay().await?;
        stage.relay_until_empty().await?;
    }
    stage.end_downstream().await?;
    course.settling = settling.elapsed();
    Ok(course)
}

/// The demo's folder.
struct Folder {
    path: PathBuf,
    /// Whether it was made here, and so goes with its content.
    made: bool,
}

impl Folder {
    fn make(wanted: Option<&Path>, seed: u64) -> Result<Self, DemoError> {
        let Some(path) = wanted else { return Self::make_new(seed) };
        let made = !path.exists();
        std::fs::create_dir_all(path).map_err(DemoError::file(path))?;
        if std::fs::read_dir(path).map_err(DemoError::file(path))?.next().is_some() {
            return Err(DemoError::NotEmpty(path.to_owned()));
        }
        let path = path.canonicalize().map_err(DemoError::file(path))?;
        Ok(Self { path, made })
    }

    /// A new folder in the current one.
    fn make_new(seed: u64) -> Result<Self, DemoError> {
        let here = std::env::current_dir().map_err(DemoError::file("."))?;
        let first = u64::from(std::process::id()) ^ new_seed() ^ seed;
        for attempt in 0..16 {
            let path = here.join(format!("outhaul-demo-{:04x}", (first + attempt) & 0xffff));
            match std::fs::create_dir(&path) {
                Ok(()) => return Ok(Self { path, made: true }),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(source) => return Err(DemoError::File { path, source }),
            }
        }
        Err(DemoError::NotEmpty(here))
    }

    /// Removes what the runs made, and the folder if it was made here.
    fn remove(&self) -> Result<(), DemoError> {
        for strategy in [Strategy::CommitThenSend, Strategy::Outhaul] {
            let folder = self.path.join(strategy.word());
            if folder.exists() {
                std::fs::remove_dir_all(&folder).map_err(DemoError::file(folder))?;
            }
        }
        if self.made { std::fs::remove_dir(&self.path).map_err(DemoError::file(&self.path)) } else { Ok(()) }
    }
}

/// Short, so that it can be typed.
fn new_seed() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |d| u64::from(d.subsec_nanos()) / 7 % 1_000_000)
}

/// Returns when the user asks to stop.
async fn interrupted() {
    let asked = async {
        #[cfg(unix)]
        if let Ok(mut terminate) = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
            terminate.recv().await;
            return;
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        interrupt = tokio::signal::ctrl_c() => {
            if interrupt.is_err() {
                std::future::pending::<()>().await;
            }
        }
        () = asked => {}
    }
}
