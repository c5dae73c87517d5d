package http

import (
	"context"
	"math"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"takt/http/api"
)

// handleBuildStatistics handles GET /api/builds/statistics.
func (s *Server) handleBuildStatistics(ctx context.Context, c echo.Context) error {
	t, err := s.deps.Builds.Totals(ctx)
	if err != nil {
		return err
	}
	r := api.Statistics{
		Pending: int64(t.Pending), Assigned: int64(t.Assigned), Building: int64(t.Building),
		Completed: t.Completed, Failed: t.Failed, Cancelled: t.Cancelled,
	}
	r.Total = r.Pending + r.Assigned + r.Building + r.Completed + r.Failed + r.Cancelled
	return s.reply(c, http.StatusOK, r)
}

// statsAge is how long the public statistics are shown before they are counted
// again.
const statsAge = 10 * time.Second

// statsCache is the reply of GET /api/stats. Anybody may ask for it, so it is
// counted by one request at a time, once in statsAge.
type statsCache struct {
	turn chan struct{} // holds one while somebody uses what follows
	at   time.Time
	now  *publicStats
}

// publicStats are the figures, and the reply that shows them. They don't change.
type publicStats struct {
	api.Stats
	body []byte
}

// handleStats handles GET /api/stats and GET /public/stats.
func (s *Server) handleStats(ctx context.Context, c echo.Context) error {
	stats, err := s.currentStats(ctx)
	if err != nil {
		return err
	}
	c.Response().Header().Set("Cache-Control", "public, max-age=10")
	return s.replyBytes(c, http.StatusOK, stats.body)
}

func (s *Server) currentStats(ctx context.Context) (*publicStats, error) {
	select {
	case s.stats.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-s.stats.turn }()
	now := time.Now()
	if s.stats.now != nil && now.Sub(s.stats.at) < statsAge {
		return s.stats.now, nil
	}
	t, err := s.deps.Builds.Totals(ctx)
	if err != nil {
		return nil, err
	}
	stats := api.Stats{
		NodesOnline: t.WorkersOnline, BuildsQueued: t.Pending, ActiveBuilds: t.Assigned + t.Building,
		BuildsToday: t.CompletedToday, TotalBuilds: t.Completed + t.Failed, TotalBuildTimeMS: t.BuildTime.Milliseconds(),
		TotalCPUCycles: int64(math.Round(t.CPUPercent / 100 * t.BuildTime.Seconds())),
	}
	body, err := marshal(stats)
	if err != nil {
		return nil, err
	}
	s.stats.at, s.stats.now = now, &publicStats{Stats: stats, body: body}
	return s.stats.now, nil
}
