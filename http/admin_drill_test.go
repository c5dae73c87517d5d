package http_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	takthttp "takt/http"
	"takt/store"
)

func TestFaultsAreMadeOnlyWhereTheyAreAllowed(t *testing.T) {
	t.Parallel()
	var made []string
	drill := func(_ context.Context, fault string, d time.Duration) error {
		if fault == "flood" {
			return store.NewError(store.InvalidArgument, "No such fault")
		}
		made = append(made, fault+" "+d.String())
		return nil
	}
	p, ask := operated(t, func(d *takthttp.Deps) { d.Drill = drill })
	r := ask("POST", "/admin/drill", `{"fault":"storage","seconds":1.5,"reason":"an exercise"}`)
	require.Equal(t, 200, r.status, r.body)
	require.JSONEq(t, `{"fault":"storage","seconds":1.5,"reason":"an exercise"}`, r.body)
	require.Equal(t, []string{"storage 1.5s"}, made)
	require.Equal(t, []string{"drill", "fault/storage", "an exercise"}, []string{p.entries[0].Action, p.entries[0].Target, p.entries[0].Reason})
	for _, bad := range []string{
		`{"fault":"storage"}`, `{"fault":"storage","seconds":61,"reason":"x"}`, `{"fault":"storage","seconds":-1,"reason":"x"}`, `{"fault":"flood","reason":"x"}`,
	} {
		require.Equal(t, 400, ask("POST", "/admin/drill", bad).status, bad)
	}
	require.Len(t, made, 1)

	_, ask = operated(t)
	r = ask("POST", "/admin/drill", `{"fault":"storage","reason":"x"}`)
	require.Equal(t, 403, r.status)
	requireProblem(t, r, "Drills are not allowed here: takt serve --allow-drill allows them", "forbidden")
}
