package http_test

import (
	"context"
	"sync"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"takt/actors/heijunka"
	"takt/actors/otp"
	"takt/actors/pubsub"
	actorqueue "takt/actors/queue"
	"takt/actors/request"
	takthttp "takt/http"
	"takt/http/api"
	"takt/store/postgres"
)

// setupActors is setup with the real queue and real request actors.
func setupActors(t *testing.T) *fixture {
	t.Helper()
	return setupWith(t, func(d *takthttp.Deps) {
		sys := otp.New(otp.Options{Logger: zerolog.Nop()})
		bus := pubsub.New()
		q := actorqueue.New(sys, d.Queue.(*queue).store, bus, d.Tokens, actorqueue.Config{})
		h := heijunka.New(sys, heijunka.Deps{
			Run: request.New(sys, heijunka.Names()...).Run, Bus: bus, Settings: postgres.NewHeijunka(postgres.New()),
		}, heijunka.Config{})
		_, err := sys.StartRoot(t.Context(), "takt", otp.SupSpec{Children: []otp.ChildSpec{
			bus.Spec(), q.Spec(), {ID: "request_sup", Supervisor: func() otp.SupSpec { return otp.SupSpec{Children: request.Specs(heijunka.Names()...)} }},
		}})
		require.NoError(t, err)
		t.Cleanup(func() { sys.Shutdown(context.WithoutCancel(t.Context())) })
		d.Queue, d.Requests = q, h
	})
}

func TestParkedWorkersGetOneBuildEach(t *testing.T) {
	t.Parallel()
	b := setupActors(t)
	const n = 20
	var answers []<-chan reply
	for range n {
		w := b.register("w")
		answers = append(answers, begin(t, b.client, "GET", b.url+"/api/workers/poll?wait=60", key("X-Worker-Token", w.AccessToken), nil))
	}
	var submitted sync.Map
	for range n {
		submitted.Store(b.submit().ID, true)
	}
	for _, a := range answers {
		r := <-a
		require.Equal(t, 200, r.status, r.body)
		p := decode[api.PollReply](t, r)
		require.NotNil(t, p.Job)
		_, ours := submitted.LoadAndDelete(p.Job.ID)
		require.True(t, ours, "handed out once")
	}
}
