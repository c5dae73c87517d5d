package api

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/store"
)

// sent is a request in memory.
type sent map[string]string

func (s sent) Path(name string) string   { return s["path "+name] }
func (s sent) Query(name string) string  { return s["query "+name] }
func (s sent) Header(name string) string { return s["header "+name] }
func (s sent) QueryAll(name string) []string {
	if v := s["query "+name]; v != "" {
		return strings.Split(v, "&")
	}
	return nil
}

func (s sent) JSON(v any, _ bool) error {
	if b, ok := v.(*trialBody); ok && s["body"] != "" {
		b.Text = s["body"]
	}
	return nil
}

type trialBody struct {
	Text string `json:"text"`
}

func (b *trialBody) Check() error {
	if b.Text == "wrong" {
		return invalid("text must not be wrong")
	}
	b.Text += "!"
	return nil
}

type trial struct {
	ID     BuildID   `path:"id"`
	Limit  int       `query:"limit" min:"1" max:"500" default:"50"`
	After  int64     `query:"after" min:"0"`
	Follow bool      `query:"follow"`
	Format string    `query:"format" enum:"array,object"`
	Worker string    `header:"X-Worker-Id"`
	Body   trialBody `body:"json"`
}

// trialEndpoint is an endpoint that [Routes] does not list.
func trialEndpoint() Endpoint[trial, None] {
	return Endpoint[trial, None]{Route: Route{Method: "GET HEAD", Path: "/trial/:id"}, decoder: NewDecoder[trial]()}
}

func TestInputsAreReadAndChecked(t *testing.T) {
	t.Parallel()
	e := trialEndpoint()
	in, err := e.Read(sent{"path id": "b1", "query follow": "1", "query after": "7", "header X-Worker-Id": "w", "body": "yes"})
	require.NoError(t, err)
	require.Equal(t, trial{ID: "b1", Limit: 50, After: 7, Follow: true, Worker: "w", Body: trialBody{"yes!"}}, in)
	for name, c := range map[string]struct {
		sent sent
		code store.Code
		text string
	}{
		"an impossible id":     {sent{"path id": "a/b"}, store.NotFound, "Build not found"},
		"a limit of 0":         {sent{"path id": "b1", "query limit": "0"}, store.InvalidArgument, "limit must be 1 to 500"},
		"a limit too high":     {sent{"path id": "b1", "query limit": "501"}, store.InvalidArgument, "limit must be 1 to 500"},
		"a limit that is none": {sent{"path id": "b1", "query limit": "x"}, store.InvalidArgument, "limit must be 1 to 500"},
		"a negative number":    {sent{"path id": "b1", "query after": "-1"}, store.InvalidArgument, "after must be a whole number"},
		"a flag":               {sent{"path id": "b1", "query follow": "maybe"}, store.InvalidArgument, "follow must be 1 or 0"},
		"another word":         {sent{"path id": "b1", "query format": "xml"}, store.InvalidArgument, "format must be array or object"},
		"a body":               {sent{"path id": "b1", "body": "wrong"}, store.InvalidArgument, "text must not be wrong"},
	} {
		_, err := e.Read(c.sent)
		require.Equal(t, c.code, store.CodeOf(err), name)
		require.ErrorContains(t, err, c.text, name)
	}
}

func TestInputsAreReadInTheOrderOfTheirFields(t *testing.T) {
	t.Parallel()
	d := NewDecoder[struct {
		Limit int       `query:"limit" min:"1"`
		Body  trialBody `body:"json"`
		ID    BuildID   `path:"id"`
	}]()
	in := sent{"query limit": "x", "body": "wrong", "path id": "a/b"}
	for _, step := range []struct{ wrong, right, text string }{
		{"query limit", "1", "limit must be a positive whole number"}, {"body", "yes", "text must not be wrong"}, {"path id", "b1", "Build not found"},
	} {
		_, err := d.Read(in)
		require.ErrorContains(t, err, step.text)
		in[step.wrong] = step.right
	}
	got, err := d.Read(in)
	require.NoError(t, err)
	require.Equal(t, BuildID("b1"), got.ID)
}

func TestCallsCarryTheirInput(t *testing.T) {
	t.Parallel()
	e := trialEndpoint()
	c, err := e.Call(trial{ID: "b1", Limit: 3, Follow: true, Worker: "w", Body: trialBody{"x"}})
	require.NoError(t, err)
	require.Equal(t, Call{
		Method: "GET", Path: "/trial/b1", Query: map[string][]string{"limit": {"3"}, "follow": {"1"}},
		Header: map[string][]string{"X-Worker-Id": {"w"}}, Body: trialBody{"x"},
	}, c)
	_, err = e.Call(trial{ID: "../b1"})
	require.ErrorContains(t, err, `"../b1" is not a valid build id`)
}

func TestMistakesInDeclarationsAreFound(t *testing.T) {
	t.Parallel()
	require.Panics(t, func() {
		NewDecoder[struct {
			At float32 `query:"at"`
		}]()
	})
}

// Further rules hold for every endpoint that is declared.
func TestEndpointsAreWellDeclared(t *testing.T) {
	t.Parallel()
	ids, routes := map[string]bool{}, map[string]bool{}
	for _, r := range Routes() {
		require.NotEmpty(t, r.ID)
		require.NotEmpty(t, r.Summary, r.ID)
		require.NotEmpty(t, r.Tag, r.ID)
		require.False(t, ids[r.ID], "%s is declared twice", r.ID)
		require.False(t, routes[r.Method+r.Path], "%s %s is declared twice", r.Method, r.Path)
		ids[r.ID], routes[r.Method+r.Path] = true, true
		in, err := inputOf(r.In())
		require.NoError(t, err, r.ID)
		inPath := 0
		for _, p := range in.params {
			if p.in == "path" {
				inPath++
				require.Contains(t, r.Path+"/", strings.TrimPrefix("/:"+p.name, "/:*")+"/", "%s has no parameter %s", r.ID, p.name)
			}
		}
		require.Equal(t, strings.Count(r.Path, ":")+strings.Count(r.Path, "*"), inPath, "%s reads every parameter of its path", r.ID)
	}
}
