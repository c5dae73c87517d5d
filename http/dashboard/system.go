package dashboard

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"

	"takt/storage"
	"takt/store"
)

// rateWindow is how long a reading of the metrics is kept at least, so that rates don't jump.
const rateWindow = 10 * time.Second

const requestTimes = "takt_http_request_duration_seconds"

// reading has the values of the metrics at a time: the sum of each over its labels (of a histogram
// its count), and how many requests took at most so many seconds.
type reading struct {
	at      time.Time
	sums    map[string]float64
	buckets map[float64]float64
}

// readMetrics reads takt's own metrics. Polls are not among the durations,
// because they wait for builds.
func (d *Dashboard) readMetrics() (reading, error) {
	r := reading{time.Now(), map[string]float64{}, map[float64]float64{}}
	families, err := d.deps.Metrics.Gather()
	if err != nil && len(families) == 0 { // one collector that fails does not hide the others
		return r, err
	}
	for _, family := range families {
		name := family.GetName()
		for _, m := range family.GetMetric() {
			if h := m.GetHistogram(); h == nil {
				r.sums[name] += m.GetCounter().GetValue() + m.GetGauge().GetValue()
				continue
			}
			if slices.ContainsFunc(m.GetLabel(), func(l *dto.LabelPair) bool { return strings.HasSuffix(l.GetValue(), "/workers/poll") }) {
				continue
			}
			r.sums[name] += float64(m.GetHistogram().GetSampleCount())
			for _, b := range m.GetHistogram().GetBucket() {
				if name == requestTimes {
					r.buckets[b.GetUpperBound()] += float64(b.GetCumulativeCount())
				}
			}
		}
	}
	return r, nil
}

// rates compares two readings.
type rates struct{ from, to reading }

// Span returns the time between the readings.
func (r rates) Span() time.Duration { return r.to.at.Sub(r.from.at) }

// Now returns the value of a metric.
func (r rates) Now(name string) float64 { return r.to.sums[name] }

// Rate returns how much a metric grew in a second.
func (r rates) Rate(name string) float64 {
	return (r.to.sums[name] - r.from.sums[name]) / max(r.Span().Seconds(), 1e-3)
}

// Quantile returns how long all but a share of the requests took at most.
func (r rates) Quantile(share float64) string {
	wanted, below, lower := share*(r.to.sums[requestTimes]-r.from.sums[requestTimes]), 0.0, 0.0
	if wanted <= 0 {
		return "–"
	}
	for _, bound := range slices.Sorted(maps.Keys(r.to.buckets)) {
		n := r.to.buckets[bound] - r.from.buckets[bound]
		if n >= wanted {
			return quantity(lower+(bound-lower)*(wanted-below)/(n-below), "s")
		}
		below, lower = n, bound
	}
	return "more than " + quantity(lower, "s")
}

// systemData is the data of the system's page. What can't be read is nil or 0.
type systemData struct {
	rates
	Version     string
	Host        string
	Controllers int
	Uptime      time.Duration
	Storage     *storage.Health
	Timeouts    *store.Timeouts
}

func (d *Dashboard) loadSystem(ctx context.Context, _ *view) (any, error) {
	r, err := d.rates.Get(ctx, func(context.Context) (rates, error) {
		now, err := d.readMetrics()
		if err == nil && now.at.Sub(d.kept[1].at) >= rateWindow {
			d.kept = [2]reading{d.kept[1], now}
		}
		return rates{d.kept[0], now}, err
	})
	if err != nil {
		return nil, err
	}
	host, _ := os.Hostname() // "" if it has none
	data := systemData{rates: r, Host: fmt.Sprintf("%s, process %d", cmp.Or(host, "a host without a name"), os.Getpid()), Version: cmp.Or(d.build, "unknown"), Uptime: time.Since(d.started)}
	if d.deps.Files != nil {
		health := d.deps.Files.Health()
		data.Storage = &health
	}
	data.Controllers, _ = d.deps.Store.Controllers(ctx) // 0 if they can't be counted
	if d.deps.Heartbeat != nil {
		if t, err := d.deps.Heartbeat.Timeouts(ctx); err == nil {
			data.Timeouts = &t
		}
	}
	return data, nil
}
