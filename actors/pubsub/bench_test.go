package pubsub_test

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"takt/actors/otp"
	"takt/actors/pubsub"
)

// counter is a process that counts what it hears.
type counter struct {
	otp.Base
	bus   pubsub.Bus
	heard *atomic.Int64
}

func (h *counter) Init(c *otp.Ctx) error {
	h.bus.Listen(c, pubsub.QueueUpdated)
	return nil
}

func (h *counter) HandleCast(_ *otp.Ctx, msg any) {
	if _, ok := msg.(pubsub.Event); ok {
		h.heard.Add(1)
	}
}

// BenchmarkPublish publishes to processes until all have heard, 100 events at a
// time.
func BenchmarkPublish(b *testing.B) {
	const round = 100
	for _, n := range []int{0, 1, 100} {
		b.Run(fmt.Sprintf("%d subscribers", n), func(b *testing.B) {
			bus, heard := pubsub.New(), atomic.Int64{}
			sys := otp.New(otp.Options{Logger: zerolog.Nop()})
			defer sys.Shutdown(b.Context())
			children := []otp.ChildSpec{bus.Spec()}
			for i := range n {
				children = append(children, otp.ChildSpec{ID: fmt.Sprint(i), Server: func() otp.Server { return &counter{bus: bus, heard: &heard} }})
			}
			_, err := sys.StartRoot(b.Context(), "takt", otp.SupSpec{Children: children})
			require.NoError(b, err)
			until := func(want int64) {
				for heard.Load() < want {
					runtime.Gosched()
				}
			}
			for all := int64(0); all < int64(n); { // all listen
				heard.Store(0)
				bus.Publish(pubsub.QueueUpdated, nil)
				for range 1000 {
					runtime.Gosched()
				}
				all = heard.Load()
			}
			heard.Store(0)
			published := 0
			b.ReportAllocs()
			for b.Loop() {
				bus.Publish(pubsub.QueueUpdated, nil)
				if published++; published%round == 0 {
					until(int64(published * n))
				}
			}
			until(int64(published * n))
		})
	}
}
