//! Simulates the scheduler on 2 to 512 CPUs, prints what it measured, and draws it:
//! `cargo run --release -p stile-sched --example simulate -- docs/scheduling.svg`.

#![allow(clippy::print_stdout, reason = "it is a command")]

mod machine;
mod picture;

use machine::{BUSY, MIXED, Machine, Outcome, Plan, SERVERS};
use picture::{Curve, Panel};
use stile_sched::CPUS;

/// Simulated microseconds on all CPUs together.
const TIME: u64 = 64_000_000;

fn main() -> std::io::Result<()> {
    let cpus: Vec<usize> = (1..).map(|power| 1 << power).take_while(|&cpus| cpus <= CPUS).collect();
    let over =
        |plan: Plan| -> Vec<Outcome> { cpus.iter().map(|&cpus| Machine::run(&Plan { cpus, time: TIME / cpus as u64, ..plan })).collect() };
    let (servers, mixed) = (over(SERVERS), over(MIXED));
    // A vCPU's slices are far apart: shares show after many of them.
    let busy: Vec<Outcome> = cpus.iter().map(|&cpus| Machine::run(&Plan { cpus, time: 20_000_000, ..BUSY })).collect();
    let latencies = |of: &[Outcome]| {
        let at = |part| of.iter().map(|outcome| outcome.latency(part) as f64).collect();
        vec![
            Curve { name: "median", values: at(0.5) },
            Curve { name: "99 %", values: at(0.99) },
            Curve { name: "99.9 %", values: at(0.999) },
        ]
    };
    let rate =
        |name, events: fn(&Outcome) -> u64| Curve { name, values: servers.iter().map(|outcome| outcome.rate(events(outcome))).collect() };
    let panels = [
        Panel { title: "Wake-up latency, half loaded (µs)", curves: latencies(&servers) },
        Panel {
            title: "Half loaded: events per CPU and second",
            curves: vec![
                rate("operations", |outcome| outcome.operations),
                rate("kicks", |outcome| outcome.kicks),
                rate("migrations", |outcome| outcome.migrations),
            ],
        },
        Panel { title: "Wake-up latency beside busy VMs, 4 vCPUs per CPU (µs)", curves: latencies(&mixed) },
        Panel {
            title: "64 busy vCPUs per CPU: a VM's largest deviation from its share in 20 s (%)",
            curves: vec![Curve { name: "deviation", values: busy.iter().map(deviation).collect() }],
        },
    ];
    for panel in &panels {
        println!("{}", panel.title);
        println!("{:24}{}", "CPUs", cpus.iter().map(|cpus| format!("{cpus:>10}")).collect::<String>());
        for curve in &panel.curves {
            println!("{:24}{}", curve.name, curve.values.iter().map(|value| format!("{value:>10.1}")).collect::<String>());
        }
    }
    match std::env::args().nth(1) {
        Some(file) => std::fs::write(file, picture::draw(&cpus, &panels)),
        None => Ok(()),
    }
}

/// The largest deviation of a VM from its share, in percent.
fn deviation(outcome: &Outcome) -> f64 {
    let fair = outcome.capacity as f64 / outcome.ran.len() as f64;
    outcome.ran.iter().map(|&ran| (ran as f64 - fair).abs() * 100.0 / fair).fold(0.0, f64::max)
}
