package cli

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"takt/http/api"
	"takt/store"
)

// DeploymentLine describes the progress of a deployment in one line.
func DeploymentLine(d api.Deployment) string {
	c := d.Counts
	parts := []string{d.State}
	for _, part := range []struct {
		n    int
		word string
	}{{c.Creating, "creating"}, {c.Pushing, "pushing"}, {c.Verifying, "verifying"}, {c.Failed, "failed"}, {c.Skipped, "skipped"}} {
		if part.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", part.n, part.word))
		}
	}
	if d.ETASeconds != nil && c.Left() > 0 {
		parts = append(parts, "about "+shortTime(*d.ETASeconds)+" left")
	}
	return strings.Join(parts, ", ")
}

func shortTime(seconds float64) string {
	return time.Duration(max(1, seconds) * float64(time.Second)).Round(time.Second).String()
}

// PrintDeployment shows a deployment's figures and a table of its repositories. The table
// lists those that are in progress or did not go well, or all of them if all is set.
func PrintDeployment(w io.Writer, d api.Deployment, all bool) {
	what := "deployment " + d.ID
	if d.Request.DryRun {
		what = "dry run " + d.ID
	}
	fmt.Fprintf(w, "%s  %s → %s  %s", what, d.Request.SourceOrg, d.Request.TargetOrg, DeploymentLine(d))
	if d.FinishedAt != nil {
		fmt.Fprintf(w, "  in %s", d.FinishedAt.Time().Sub(d.CreatedAt.Time()).Round(100*time.Millisecond))
	}
	fmt.Fprintln(w)
	if d.Error != nil {
		fmt.Fprintln(w, store.Lines(*d.Error))
	}
	if p := d.Plan; p != nil {
		fmt.Fprintf(w, "would create %d, skip %d; %d in conflict; left out by filters %d; %d calls, about %s\n",
			p.Create, p.Skip, p.Conflict, d.Filtered, p.Calls, shortTime(p.Seconds))
	} else if d.Counts.Total > 0 {
		fmt.Fprintf(w, "%d repositories: %d done, %d failed, %d skipped, %d left; %d branches and tags\n",
			d.Counts.Total, d.Counts.Done, d.Counts.Failed, d.Counts.Skipped, d.Counts.Left(), d.Refs)
	}
	rows := [][]string{{"REPOSITORY", "COPY", "STEP", "REFS", "TOOK", "NOTE"}}
	hidden := 0
	for _, r := range d.Repos {
		quiet := (r.Step == "done" || r.Step == "planned") && r.Error == nil && r.Warning == nil
		if quiet && !all {
			hidden++
			continue
		}
		row := repoRow(r)
		if d.Request.DryRun {
			row[2] = cmp.Or(map[string]string{"planned": "create", "skipped": "skip", "failed": "conflict"}[r.Step], r.Step)
		}
		rows = append(rows, row)
	}
	if len(rows) > 1 {
		fmt.Fprintln(w)
		Table(w, rows)
	}
	if hidden > 0 && len(rows) > 1 {
		fmt.Fprintf(w, "and %d without anything to tell (--all)\n", hidden)
	}
}

func repoRow(r api.DeploymentRepo) []string {
	took := "-"
	if r.DurationMS != nil {
		took = (time.Duration(*r.DurationMS) * time.Millisecond).Round(time.Millisecond).String()
	}
	note := Or(r.Error, Or(r.Warning, ""))
	if r.Attempts > 1 {
		note = strings.TrimSpace(note + " (" + strconv.Itoa(r.Attempts) + " attempts)")
	}
	return []string{store.Lines(r.Name), store.Lines(r.Target), r.Step, strconv.Itoa(r.Refs), took, store.Lines(strings.ReplaceAll(note, "\n", " "))}
}
