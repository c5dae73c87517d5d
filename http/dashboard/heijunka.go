package dashboard

import (
	"context"
	"encoding/json"
	"html/template"
	"strings"
	"time"

	"takt/store"
)

// loadData is the data of the load levelling page.
type loadData struct {
	store.HeijunkaStatus
	Plots     []template.HTML
	PoolPlots map[string][]template.HTML
	Changes   string
}

// hourAgo is the time span of the page's plots.
const hourAgo = time.Hour

func (d *Dashboard) loadHeijunka(_ context.Context, _ *view) (any, error) {
	data := loadData{HeijunkaStatus: d.deps.Heijunka.Status(), PoolPlots: map[string][]template.HTML{}}
	now := time.Now()
	hour := func(f figure) []float32 { // per minute; the last ten minutes in finer steps
		return append(stretched(d.deps.History.past(f, 60, now)[:50], 6, f.sums()), d.deps.History.recent(f, now)...)
	}
	draw := func(id, title, unit string, lines ...line) template.HTML {
		return plot{ID: id, Title: title, Unit: unit, Span: hourAgo, Lines: lines}.HTML()
	}
	data.Plots = []template.HTML{
		draw("load", "Load and its limits", "requests", line{"admitted", hour(figLoad)}, line{"soft limit", hour(figSoft)}, line{"hard limit", hour(figHard)}),
		draw("rejected", "Rejected", "requests in 10 s", line{"regular", hour(figRejectedRegular)}, line{"hard", hour(figRejectedHard)}),
		draw("balance", "Balance of the pools", "1 is even", line{"coefficient", hour(figBalance)}),
		draw("surge", "Demand per worker, and its baseline", "requests", line{"demand", hour(figDemand)}, line{"baseline", hour(figBaseline)}),
	}
	for _, p := range data.Pools {
		if f, ok := d.deps.History.pool(p.Name); ok {
			data.PoolPlots[p.Name] = []template.HTML{
				draw("pool-"+p.Name, p.Name+": workers", "", line{"busy", hour(f + poolBusy)}, line{"there", hour(f + poolWorkers)}, line{"requests waiting", hour(f + poolWaiting)}),
				draw("latency-"+p.Name, p.Name+": latency", "ms", line{"average", hour(f + poolLatency)}),
			}
		}
	}
	if changed := strings.TrimSpace(string(data.Changed)); changed != "{}" && json.Valid(data.Changed) {
		data.Changes = changed
	}
	return data, nil
}

// stretched repeats each value n times. It divides a sum by n first.
func stretched(values []float32, n int, sum bool) []float32 {
	out := make([]float32, 0, len(values)*n)
	for _, v := range values {
		if sum {
			v /= float32(n)
		}
		for range n {
			out = append(out, v)
		}
	}
	return out
}
