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

// counter is a process that counts events.
type counter struct {
	otp.Base
	bus pubsub.Bus
	got *atomic.Int64
}

func (k *counter) Init(c *otp.Ctx) error {
	k.bus.Listen(c, pubsub.QueueUpdated)
	return nil
}

func (k *counter) HandleCast(_ *otp.Ctx, msg any) {
	if _, ok := msg.(pubsub.Event); ok {
		k.got.Add(1)
	}
}

// BenchmarkPublish publishes to processes, 100 events at a time, until all have
// them.
func BenchmarkPublish(b *testing.B) {
	const round = 100
	for _, n := range []int{0, 1, 100} {
		b.Run(fmt.Sprintf("%d subscribers", n), func(b *testing.B) {
			bus, got := pubsub.New(), atomic.Int64{}
			sys := otp.New(otp.Options{Logger: zerolog.Nop()})
			defer sys.Shutdown(b.Context())
			children := []otp.ChildSpec{bus.Spec()}
			for i := range n {
				children = append(children, otp.ChildSpec{ID: fmt.Sprint(i), Server: func() otp.Server { return &counter{bus: bus, got: &got} }})
			}
			_, err := sys.StartRoot(b.Context(), "takt", otp.SupSpec{Children: children})
			require.NoError(b, err)
			until := func(want int64) {
				for got.Load() < want {
					runtime.Gosched()
				}
			}
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
