package janitor

import "sync/atomic"

// figures outlive the actor's incarnations.
type figures struct {
	rounds, temporary, orphans, failures atomic.Int64
	sources, certs, results, logs        atomic.Int64
	diagnostics                          atomic.Int64
	copied, copyFailures, owed           atomic.Int64
}

// Stats are what the janitor did since the process started.
type Stats struct {
	// Rounds were finished. Temporary files and unfinished uploads, and Orphans
	// that no row named, were removed; Failures are those that could not be.
	Rounds, Temporary, Orphans, Failures int64
	// Files of these kinds, the logs of builds, and diagnostic reports, that were
	// kept for long enough.
	Sources, Certs, Results, Logs, Diagnostics int64
	// Copied are the copies brought to S3, CopyFailures those that could not be
	// for another reason than an outage, Owed those that it waits for.
	Copied, CopyFailures, Owed int64
}

// Stats returns the janitor's figures.
func (j *Janitor) Stats() Stats {
	f := &j.figures
	return Stats{
		Rounds: f.rounds.Load(), Temporary: f.temporary.Load(), Orphans: f.orphans.Load(), Failures: f.failures.Load(),
		Sources: f.sources.Load(), Certs: f.certs.Load(), Results: f.results.Load(), Logs: f.logs.Load(),
		Diagnostics: f.diagnostics.Load(),
		Copied:      f.copied.Load(), CopyFailures: f.copyFailures.Load(), Owed: f.owed.Load(),
	}
}
