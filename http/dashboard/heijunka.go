package dashboard

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"takt/store"
)

// loadData is the data of the load levelling page.
type loadData struct {
	store.HeijunkaStatus
	Plots     []plot
	PoolPlots map[string][]plot
	Changes   string
}

func (d *Dashboard) loadHeijunka(_ context.Context, _ *view) (any, error) {
	data := loadData{HeijunkaStatus: d.deps.Heijunka.Status(), PoolPlots: map[string][]plot{}}
	now := time.Now()
	hour := func(f figure) []float32 { // per minute; the last ten minutes in finer steps
		return append(stretched(d.deps.History.past(f, 60, now)[:50], 6, f.sums()), d.deps.History.recent(f, now)...)
	}
	draw := func(id, title, unit string, lines ...line) plot { return newPlot(id, title, unit, time.Hour, lines...) }
	data.Plots = []plot{
		draw("load", "Load and its limits", "requests", line{Name: "admitted", Values: hour(figLoad)}, line{Name: "soft limit", Values: hour(figSoft)}, line{Name: "hard limit", Values: hour(figHard)}),
		draw("rejected", "Rejected", "requests in 10 s", line{Name: "regular", Values: hour(figRejectedRegular)}, line{Name: "hard", Values: hour(figRejectedHard)}),
		draw("balance", "Balance of the pools", "1 is even", line{Name: "coefficient", Values: hour(figBalance)}),
		draw("surge", "Demand per worker, and its baseline", "requests", line{Name: "demand", Values: hour(figDemand)}, line{Name: "baseline", Values: hour(figBaseline)}),
	}
	for _, p := range data.Pools {
		if f, ok := d.deps.History.pool(p.Name); ok {
			data.PoolPlots[p.Name] = []plot{
				draw("pool-"+p.Name, p.Name+": workers", "", line{Name: "busy", Values: hour(f + poolBusy)}, line{Name: "there", Values: hour(f + poolWorkers)}, line{Name: "requests waiting", Values: hour(f + poolWaiting)}),
				draw("latency-"+p.Name, p.Name+": latency", "ms", line{Name: "average", Values: hour(f + poolLatency)}),
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
