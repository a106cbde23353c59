//! Narrowing a report to the GPUs asked about.

use std::collections::HashSet;

use crate::gpu::selector::Selection;
use crate::model::report::Report;

/// Leaves only what concerns the selection.
///
/// A shared device (`nvidiactl`, `nvidia-uvm`) names no GPU, and one such handle alone can keep the memory of any. So a
/// holder stays if it holds a selected GPU's own device, or no GPU's own device at all.
pub(crate) fn narrow(report: &mut Report, selection: &Selection) {
    if selection.all {
        return;
    }
    let asked = |gpu: Option<u32>, device: &str| match gpu {
        Some(gpu) => selection.gpus.contains(&gpu),
        None => selection.gpus.is_empty() && selection.devices.iter().any(|wanted| wanted.name == device),
    };
    report.gpus.retain(|gpu| selection.gpus.contains(&gpu.index));
    report.holders.retain(|holder| {
        let own = holder.devices.iter().any(|held| held.gpu.is_some());
        holder.devices.iter().any(|held| asked(held.gpu, &held.device))
            || (!own && !selection.gpus.is_empty())
    });
    for holder in &mut report.holders {
        holder.devices.retain(|held| held.gpu.is_none() || asked(held.gpu, &held.device));
        holder.memory.retain(|memory| selection.gpus.contains(&memory.gpu));
    }
    let held: HashSet<u64> = report
        .holders
        .iter()
        .flat_map(|holder| &holder.devices)
        .flat_map(|device| device.files.iter().copied())
        .collect();
    report.files.retain(|file| held.contains(&file.id) || asked(file.gpu, &file.device));
}
