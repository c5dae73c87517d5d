package dashboard

import (
	"context"
	"encoding/hex"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/http/edge"
	"takt/http/forecast"
	"takt/store"
)

// buildsData is the data of the list of builds.
type buildsData struct {
	list[store.Build]
	// Wrong is what is wrong with the filter. That part of it is ignored.
	Wrong string
	// Total counts what matches.
	Total string
	// Platforms are those that the filter offers.
	Platforms []string
}

var buildStates = []string{"pending", "assigned", "building", "completed", "failed", "cancelled"}

// StateNames are the states that the filter offers.
func (buildsData) StateNames() []string { return buildStates }

// Ages are the times of submission that the filter offers.
func (buildsData) Ages() []string { return []string{"1h", "24h", "168h"} }

// Labels returns the labels of the filter, and an empty one to be filled in.
func (buildsData) Labels(v *view) []string {
	return append(slices.DeleteFunc(slices.Clone(v.All("label")), func(sent string) bool { return sent == "" }), "")
}

// AgeText returns the text of one of the Ages.
func (buildsData) AgeText(age string) string {
	return map[string]string{"1h": "last hour", "24h": "last day", "168h": "last week"}[age]
}

// buildFilter reads the filter of the list, and returns what is wrong with it.
func (d *Dashboard) buildFilter(v *view) (f store.BuildFilter, wrong string) {
	if oneOf(v, "state", &wrong, buildStates...) != "" {
		for _, state := range v.All("state") {
			f.States = append(f.States, store.BuildState(state))
		}
	}
	f.Platform = store.Platform(oneOf(v, "platform", &wrong, d.platforms...))
	if age, err := time.ParseDuration(oneOf(v, "age", &wrong, buildsData{}.Ages()...)); err == nil {
		f.Since = time.Now().Add(-age)
	}
	for _, sent := range v.All("label") {
		name, value, ok := strings.Cut(sent, "=")
		switch name = store.Text(strings.TrimSpace(name)); {
		case !ok && name != "":
			wrong = "Write a label as name=value, such as branch=main."
		case f.Labels[name] != "":
			wrong = "The label " + name + " is there twice."
		case ok && f.Labels == nil:
			f.Labels = store.Labels{}
			fallthrough
		case ok:
			f.Labels[name] = store.Text(strings.TrimSpace(value))
		}
	}
	f.Text = strings.TrimSpace(v.Get("q"))
	return f, wrong
}

func (d *Dashboard) loadBuilds(ctx context.Context, v *view) (any, error) {
	f, wrong := d.buildFilter(v)
	rows, next, err := d.deps.Builds.List(ctx, f, v.rows("after"))
	if err != nil {
		return nil, err
	}
	n := len(rows)
	if next != "" || v.Get("after") != "" {
		n, err = d.deps.Store.CountBuilds(ctx, f)
	}
	total := plural(n, "build")
	if n > store.MaxCounted {
		total = "more than " + plural(store.MaxCounted, "build")
	}
	return buildsData{listOf(v, "after", rows, next), wrong, total, d.platforms}, err
}

// bulkData is the result of an act on several builds.
type bulkData struct {
	Act    string // retry or cancel
	Done   int
	Failed []store.Named // the ids, and why
}

// maxBulk is how many builds one form may name.
const maxBulk = 100

// bulkRoute is the route of the form of the list of builds. It needs what the acts need.
func (d *Dashboard) bulkRoute() edge.Route {
	r := d.route(post, "/builds/bulk", api.Reader, d.bulk)
	r.Service = api.ServiceBuilds
	r.Scope, r.Own = api.CancelBuild.Scope, api.CancelBuild.Own
	return r
}

// bulk retries or cancels the builds of a form, each as the API does. The audit has one entry
// for all of them.
func (d *Dashboard) bulk(ctx context.Context, c echo.Context) (any, error) {
	fields := c.Request().PostForm
	ids := fields["id"]
	why, err := reasonOf(fields, true)
	if err != nil {
		return nil, err
	}
	if len(ids) > maxBulk {
		return nil, edge.Invalid("At most " + strconv.Itoa(maxBulk) + " builds can be retried or cancelled at once, got " + strconv.Itoa(len(ids)))
	}
	data := bulkData{Act: "cancel"}
	if fields.Get("act") == "retry" {
		data.Act = "retry"
	}
	if len(ids) > 0 {
		detail := map[string]any{"builds": edge.Each(ids, store.Text)}
		_ = d.server.Audited(ctx, data.Act, plural(len(ids), "build"), why, detail, func(ctx context.Context) error {
			d.actOn(ctx, ids, why, &data)
			return data.err()
		}) // the page shows what failed
	}
	return d.render(ctx, c, http.StatusOK, "bulk", &screen{Title: "Builds", Section: "/builds", Path: ownPath(fields.Get("back"), "/builds"), Page: data})
}

// actOn retries or cancels builds.
func (d *Dashboard) actOn(ctx context.Context, ids []string, why string, data *bulkData) {
	for _, id := range ids {
		id = store.Text(id)
		build, reason := api.BuildID(id), api.Why{Reason: why}
		var err error
		if data.Act == "retry" {
			_, err = d.server.Acts.RetryBuild(ctx, api.RetryBuildIn{BuildAccess: api.BuildAccess{ID: build}, Why: reason})
		} else {
			_, err = d.server.Acts.CancelBuild(ctx, api.CancelBuildIn{ID: build, Why: reason})
		}
		if err != nil {
			data.Failed = append(data.Failed, store.Named{ID: id, Name: edge.FailureOf(err).Message})
		} else {
			data.Done++
		}
	}
}

// err returns the error of the act for the audit, nil if nothing failed.
func (b *bulkData) err() error {
	if len(b.Failed) == 0 {
		return nil
	}
	const named = 5
	failed := edge.Each(b.Failed[:min(len(b.Failed), named)], func(n store.Named) string { return n.ID + " (" + n.Name + ")" })
	if more := len(b.Failed) - named; more > 0 {
		failed = append(failed, strconv.Itoa(more)+" more")
	}
	return store.NewError(store.Conflict, strconv.Itoa(b.Done)+" done, failed: "+strings.Join(failed, ", "))
}

// buildData is the data of a build's page.
type buildData struct {
	store.Build
	Steps []forecast.Step
	Log   logData
	Why   *forecast.Reason
	Plots []plot
	// Restarted is when this process began, if that was after the build; what it reported before is lost.
	Restarted time.Time
}

// Took returns the duration of the last attempt, up to now while it runs.
func (b buildData) Took() time.Duration {
	switch {
	case b.StartedAt.IsZero():
		return 0
	case b.CompletedAt.IsZero():
		return time.Since(b.StartedAt)
	default:
		return b.CompletedAt.Sub(b.StartedAt)
	}
}

// Old reports whether the build ended so long ago that its telemetry may have been dropped.
func (b buildData) Old() bool { return b.State.Final() && time.Since(b.CompletedAt) > machineLife }

// Digest returns a file's SHA-256 in hexadecimal.
func (buildData) Digest(f *store.File) string { return hex.EncodeToString(f.SHA256[:]) }

func (d *Dashboard) loadBuild(ctx context.Context, v *view) (any, error) {
	if !store.ValidID(v.id) {
		return nil, notFound("Build")
	}
	b, err := d.deps.Builds.Find(ctx, v.id)
	if err != nil {
		return nil, err
	}
	data := buildData{Build: b}
	if data.Log, err = d.newestLines(ctx, v, b); err != nil {
		return nil, err
	}
	past, err := d.deps.Forecast.Past(ctx, b)
	if err != nil {
		return nil, err
	}
	if data.Steps, data.Why, err = d.deps.Forecast.Story(ctx, past); err != nil {
		return nil, err
	}
	if worker := b.WorkerID; worker != "" && !b.StartedAt.IsZero() {
		end := b.CompletedAt
		if end.IsZero() {
			end = time.Now()
		}
		data.Plots = d.machinePlots(worker, b.StartedAt.Add(-time.Second), end)
		if began := d.deps.History.began; b.StartedAt.Before(began) {
			data.Restarted = began
		}
	}
	return data, nil
}

func notFound(what string) error { return store.NewError(store.NotFound, what+" not found") }
