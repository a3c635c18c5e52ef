//! Whether a stored record hangs together: it may have been edited, or come from anywhere.

use kdelta_model::{BootRecord, Plan, RunRecord};

use crate::kernel::digest_of;

/// Checks every index of `record` and the digest of its plan; the error says what is wrong.
pub(super) fn record(record: &RunRecord) -> Result<(), String> {
    let plan = &record.plan;
    let bytes = plan.canonical().map_err(|error| error.to_string())?;
    if digest_of(&bytes) != record.plan_digest {
        return Err("its plan is not the one whose digest was stored before the first boot".to_owned());
    }
    if plan.kernels.len() != record.kernels.len() || plan.arms.len() != record.arms.len() {
        return Err("it has not one identity for each kernel and arm".to_owned());
    }
    let arm = |index: usize| index < plan.arms.len();
    for entry in &plan.arms {
        if entry.kernel >= plan.kernels.len() || entry.placebo_of.is_some_and(|base| !arm(base)) {
            return Err(format!("arm {:?} names a kernel or an arm that is not there", entry.name));
        }
        for scenario in &entry.scenarios {
            kdelta_workloads::find(&scenario.workload).map_err(|error| error.to_string())?;
        }
    }
    if plan.pairs.iter().any(|pair| !arm(pair.base) || !arm(pair.arm)) {
        return Err("a pair names an arm that is not there".to_owned());
    }
    if plan.boots.iter().enumerate().any(|(index, boot)| boot.index != index || !arm(boot.arm)) {
        return Err("its planned boots are not in order, or name an arm that is not there".to_owned());
    }
    record.boots.iter().try_for_each(|boot| planned(plan, boot))
}

/// Checks that `boot` is one that `plan` asks for.
pub(super) fn planned(plan: &Plan, boot: &BootRecord) -> Result<(), String> {
    let fits = plan
        .boots
        .get(boot.index)
        .is_some_and(|asked| (asked.arm, asked.seed, asked.purpose) == (boot.arm, boot.seed, boot.purpose));
    if fits { Ok(()) } else { Err(format!("boot {} is not one that the plan asks for", boot.index)) }
}
