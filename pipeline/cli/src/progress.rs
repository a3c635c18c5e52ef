//! Engine events on standard error: bars on a terminal, plain lines elsewhere, JSON lines on
//! request. Read [`Progress`] first.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use kdelta_engine::{Event, EventSink};

use crate::terminal::{clean, tell};

/// Time between two plain lines about one stage.
const PLAIN_INTERVAL: Duration = Duration::from_secs(15);

/// Tells the user how far things are, and remembers how long each stage took.
pub struct Progress {
    form: Form,
    took: Mutex<Vec<(String, Duration, String)>>,
}

enum Form {
    Bars(MultiProgress, Mutex<BTreeMap<String, ProgressBar>>),
    Plain(Mutex<BTreeMap<String, Plain>>),
    Json,
}

struct Plain {
    started: Instant,
    said: Instant,
}

impl Progress {
    /// JSON when asked for, bars on a terminal outside CI, else plain lines.
    pub fn new(json: bool) -> Self {
        let form = if json {
            Form::Json
        } else if std::io::stderr().is_terminal() && std::env::var_os("CI").is_none() {
            Form::Bars(MultiProgress::new(), Mutex::default())
        } else {
            Form::Plain(Mutex::default())
        };
        Self { form, took: Mutex::default() }
    }

    /// Stages that ended, in order: name, duration, and what came of it.
    pub fn stages(&self) -> Vec<(String, Duration, String)> {
        self.took.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn bar(&self, all: &MultiProgress, bars: &Mutex<BTreeMap<String, ProgressBar>>, event: &Event) {
        let mut bars = bars.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::StageStarted { stage, detail } => {
                let bar = all.add(ProgressBar::new_spinner());
                bar.enable_steady_tick(Duration::from_millis(200));
                bar.set_style(spinner());
                bar.set_prefix(clean(stage));
                bar.set_message(clean(detail));
                bars.insert(stage.clone(), bar);
            }
            Event::StageProgress { stage, done, total, detail } => {
                let Some(bar) = bars.get(stage) else { return };
                if let Some(total) = total {
                    bar.set_length(*total);
                    bar.set_style(counter());
                }
                bar.set_position(*done);
                bar.set_message(clean(detail));
            }
            Event::StageFinished { stage, took, detail } => {
                if let Some(bar) = bars.remove(stage) {
                    bar.finish_and_clear();
                }
                let _ = all.println(clean(&finished(stage, *took, detail)));
            }
            Event::Warning { text } => drop(all.println(clean(&format!("warning: {text}")))),
        }
    }

    fn plain(stages: &Mutex<BTreeMap<String, Plain>>, event: &Event) {
        let mut stages = stages.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        match event {
            Event::StageStarted { stage, detail } => {
                stages.insert(stage.clone(), Plain { started: now, said: now });
                line(&format!("{stage}: {detail}"));
            }
            Event::StageProgress { stage, done, total, detail } => {
                let Some(state) = stages.get_mut(stage) else { return };
                if now - state.said < PLAIN_INTERVAL {
                    return;
                }
                state.said = now;
                let mut text = format!("{stage}: {done}");
                if let Some(total) = total {
                    text.push_str(&format!(" of {total}"));
                    text.push_str(&left(now - state.started, *done, *total));
                }
                line(&format!("{text} {detail}"));
            }
            Event::StageFinished { stage, took, detail } => {
                stages.remove(stage);
                line(&finished(stage, *took, detail));
            }
            Event::Warning { text } => line(&format!("warning: {text}")),
        }
    }
}

impl EventSink for Progress {
    fn emit(&self, event: Event) {
        if let Event::StageFinished { stage, took, detail } = &event {
            let mut stages = self.took.lock().unwrap_or_else(PoisonError::into_inner);
            stages.push((stage.clone(), *took, detail.clone()));
        }
        match &self.form {
            Form::Bars(all, bars) => self.bar(all, bars, &event),
            Form::Plain(stages) => Self::plain(stages, &event),
            Form::Json => line(&serde_json::to_string(&event).unwrap_or_default()),
        }
    }
}

/// One whole line at once, so that threads do not mix theirs.
fn line(text: &str) {
    tell(text);
}

fn finished(stage: &str, took: Duration, detail: &str) -> String {
    match detail {
        "" => format!("{stage}: done ({})", seconds(took)),
        detail => format!("{stage}: {detail} ({})", seconds(took)),
    }
}

/// `, about 40 s left`, once there is something to reckon from.
fn left(elapsed: Duration, done: u64, total: u64) -> String {
    if done == 0 || done >= total {
        return String::new();
    }
    let remaining = elapsed.as_secs_f64() / done as f64 * (total - done) as f64;
    format!(", about {} left", seconds(Duration::from_secs_f64(remaining)))
}

/// `4.2 s`, `75 s` or `6 min 10 s`.
pub fn seconds(time: Duration) -> String {
    match time.as_secs() {
        0..10 => format!("{:.1} s", time.as_secs_f64()),
        10..120 => format!("{} s", time.as_secs()),
        long => format!("{} min {} s", long / 60, long % 60),
    }
}

fn spinner() -> ProgressStyle {
    style("{spinner} {prefix}: {msg} {elapsed}")
}

fn counter() -> ProgressStyle {
    style("{spinner} {prefix} [{bar:30}] {pos}/{len} {elapsed}, {eta} left  {wide_msg}")
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}
