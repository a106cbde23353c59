use gpu_tracer::{kernel::Btf, probe::Iterators, model::*, ledger::Ledger};
use gpu_tracer::model::device::*;
use std::time::{Duration, Instant};
fn main() { tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG).with_writer(std::io::stderr).init();
    let t=Instant::now();
    let btf = Btf::read("/sys/kernel/btf/vmlinux").unwrap();
    println!("btf {:?}", t.elapsed());
    let t=Instant::now();
    let mut it = match Iterators::load(&btf) { Ok(i)=>i, Err(e)=>{ println!("{e}\n{e:?}"); return } };
    println!("load {:?} {it:?} walks {}", t.elapsed(), it.walks_tables());
    let table = DeviceTable { ranges: vec![DeviceRange{major:1,first:5,last:5,naming:Naming::Fixed("nvidia0".into())}], gpu_nodes: vec![] };
    for _ in 0..3 {
    let t=Instant::now();
    let s = it.snapshot(&table, Duration::from_secs(2)).unwrap();
    println!("snapshot {:?}: {} tasks {} files {} refs missing {:?}", t.elapsed(), s.tasks.len(), s.files.len(), s.references.len(), s.missing);
    let mut l = Ledger::new(); l.reconcile(&s);
    let v = l.view();
    for f in &v.files { println!("  {f:?}"); }
    for h in &v.holders { println!("  {:?} tids {:?} {:?}", h.process, h.tids, h.held); }
    }
}
