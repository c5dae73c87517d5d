package http_test

import (
	"cmp"
	"crypto/sha256"
	"io/fs"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	takthttp "takt/http"
	"takt/http/api"
	"takt/store"
)

// hostileNames returns some hundred names that try to be more than a name. None
// is the id of anything.
func hostileNames() []string {
	names := []string{
		".", "..", "...", "....", "~", "~root", "-", "--help", "-rf", "*", "?", "#", "%", "%%", "%00", "%zz", "\x00", "a\x00b", "..\x00", "\x00..",
		"a b", " ", "a\tb", "a\nb", "a\r\nX-Injected: 1", "%0d%0aX-Injected:%201", "a\rb", "\u2028", "\ufeff", "ä", "a\u0308", "日本", "\u202e", "\xff\xfe", "\xc0\xae\xc0\xae\xc0\xaf",
		"\u2025", "\uff0e\uff0e\uff0f", "\u2215etc", "..\u2216", "\u212a", "ı",
		"con", "CON", "nul", "aux.zip", "COM1", "LPT1:", "PRN.", "clock$", "C:", `C:\windows\win.ini`, `\\host\share`, `\\?\C:\`, "a:b", "a::$DATA",
		"/dev/null", "/dev/stdin", "/proc/self/environ", "/proc/self/fd/3", "/etc/passwd", "//", "///etc", "file:///etc/passwd", "http://127.0.0.1/",
		"'", `"`, "`", ";", "|", "&", "$(id)", "${HOME}", "`id`", "{{7}}", "%s%n", "<script>", "' OR '1'='1", "1; DROP TABLE builds", "\\'; --", "{\"$ne\":1}",
		"builds", "tmp", "tmp/x", "builds/x", ".git/config", ".env", ".ssh", "source.zip", "a/b", `a\b`, "a/", "/a", "a//b", "a/./b", "a/../b",
		strings.Repeat("a", 65), strings.Repeat("a", 255), strings.Repeat("a", 256), strings.Repeat("a", 5000), strings.Repeat("../", 1000), strings.Repeat("%2e", 100),
		"0", "-1", "1e9", "NaN", "null", "undefined", "true", "18446744073709551616",
	}
	for _, up := range []string{"../", `..\`, "%2e%2e/", "..%2f", "..%5c", "%252e%252e%252f", "....//", "..;/", "./", "/"} {
		for _, depth := range []int{1, 3} {
			for _, to := range []string{"etc/passwd", "source.zip", "tmp/x", "builds/x/certs.zip", "", "x\x00.zip"} {
				names = append(names, strings.Repeat(up, depth)+to)
			}
		}
	}
	return names
}

// sendable reports whether a client can send name as a header's value.
func sendable(name string) bool {
	return utf8.ValidString(name) && !strings.ContainsAny(name, "\x00\r\n")
}

// filesAround is everything in and beside the files directory: mode and content.
func filesAround(t *testing.T, b *fixture) map[string]string {
	t.Helper()
	seen := map[string]string{}
	root := filepath.Dir(b.dir)
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		what := info.Mode().String()
		if info.Mode().IsRegular() {
			raw, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			sum := sha256.Sum256(raw)
			what += string(sum[:])
		}
		name, err := filepath.Rel(root, path)
		seen[name] = what
		return err
	}))
	return seen
}

// hostileFixture has a build that is assigned and one that is completed, and a
// file beside the files directory that nobody may touch.
func hostileFixture(t *testing.T) (b *fixture, s api.Submitted, w api.Registered) {
	t.Helper()
	b = setupWith(t, func(d *takthttp.Deps) {
		d.Audit, d.Heijunka = silentAudit{}, &lever{err: store.NewError(store.NotFound, "No such pool")}
		d.Tree = func(bool) api.TreeNode {
			return api.TreeNode{ID: "takt", Path: "takt", Type: "supervisor", Status: "running"}
		}
	}, func(c *takthttp.Config) { c.PollRate = -1 })
	require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(b.dir), "passwd"), []byte("root:"), 0o600))
	other := b.register("other")
	done := b.submit()
	require.Equal(t, 200, b.finish(done.ID, other.ID, "app").status)
	s, w = b.assigned(part{"certs", "c.zip", "certs"})
	return b, s, w
}

// requireRefused checks what a hostile name may at most achieve.
func requireRefused(t *testing.T, r reply, what, name string) {
	t.Helper()
	require.GreaterOrEqual(t, r.status, 400, "%s: %.200q: %s", what, name, r.body)
	requireHarmless(t, r, what, name)
}

func requireHarmless(t *testing.T, r reply, what, name string) {
	t.Helper()
	require.Less(t, r.status, 500, "%s: %.200q: %s", what, name, r.body)
	require.NotContains(t, r.body, "root:", what)
	require.Empty(t, r.header.Get("X-Injected"), what)
}

// typicalNames are a few hostile names of different sorts. They are for what is read by code
// that another test gives all of them to.
func typicalNames() []string {
	return []string{
		"..", "a/../b", "../../../etc/passwd", "%2e%2e/%2e%2e/%2e%2e/source.zip", "%00", "..\x00", "a\r\nX-Injected: 1",
		"' OR '1'='1", "\xc0\xae\xc0\xae\xc0\xaf", strings.Repeat("a", 5000),
	}
}

// parameter is a parameter of a path: an operation whose path has NAME in its place, and what is
// right in the places of the others.
type parameter struct{ method, path, kind string }

// pathParameters lists the parameters of all declared paths. Those of one kind are read by the
// same code: the method of their type or, as the type string has none, their part of the API.
func pathParameters(t *testing.T, s api.Submitted, w api.Registered) (all []parameter) {
	t.Helper()
	right := map[reflect.Type]string{
		reflect.TypeFor[api.BuildID](): s.ID, reflect.TypeFor[api.WorkerID](): w.ID,
		reflect.TypeFor[api.DeploymentID](): store.NewID(), reflect.TypeFor[api.HubSpotID](): "62515",
	}
	segment := regexp.MustCompile(`:[a-z_]+|\*`)
	for _, r := range api.Routes() {
		types, rights := map[string]reflect.Type{}, map[string]string{}
		for _, f := range reflect.VisibleFields(r.In()) {
			if name, ok := f.Tag.Lookup("path"); ok {
				first, _, _ := strings.Cut(f.Tag.Get("enum"), ",")
				types[name], rights[name] = f.Type, cmp.Or(first, right[f.Type])
			}
		}
		for _, at := range segment.FindAllStringIndex(r.Path, -1) {
			of := types[strings.TrimPrefix(r.Path[at[0]:at[1]], ":")]
			require.NotNil(t, of, "%s does not declare what is at %d", r.Path, at[0])
			kind := of.String()
			if !reflect.PointerTo(of).Implements(reflect.TypeFor[api.Param]()) {
				kind += " of " + r.Path[:at[1]]
			}
			others := func(part string) string {
				return segment.ReplaceAllStringFunc(part, func(p string) string {
					v := rights[strings.TrimPrefix(p, ":")]
					require.NotEmpty(t, v, "of the parameter %s of %s nothing is known to be right", p, r.Path)
					return v
				})
			}
			for method := range strings.FieldsSeq(r.Method) {
				all = append(all, parameter{method, others(r.Path[:at[0]]) + "NAME" + others(r.Path[at[1]:]), kind})
			}
		}
	}
	return all
}

// All names are sent in one parameter of each kind, and a few in every parameter.
func TestHostileNamesInPathsReachNothing(t *testing.T) {
	t.Parallel()
	b, s, w := hostileFixture(t)
	parameters, names, before, tried := pathParameters(t, s, w), hostileNames(), filesAround(t, b), map[string]bool{}
	require.GreaterOrEqual(t, len(names), 200)
	require.GreaterOrEqual(t, len(parameters), 50)
	for _, p := range parameters {
		some := typicalNames()
		if !tried[p.kind] {
			some, tried[p.kind] = names, true
		}
		for _, name := range some {
			b.tryName(p, name, s, w)
		}
	}
	require.Equal(t, before, filesAround(t, b))
	require.Equal(t, "assigned", b.status(s.ID).Status)
}

// tryName sends a hostile name in a parameter, escaped and as it is.
func (b *fixture) tryName(p parameter, name string, s api.Submitted, w api.Registered) {
	b.t.Helper()
	for _, as := range []string{url.PathEscape(name), name} {
		target := strings.Replace(p.path, "NAME", as, 1)
		if u, err := url.Parse(b.url + target); err != nil || u.RawQuery != "" || u.Fragment != "" || strings.HasSuffix(target, "?") || strings.HasSuffix(target, "#") {
			continue // no client can send it, or it is not in the path
		}
		if strings.HasSuffix(p.path, "NAME") && strings.Trim(as, "/") == "" && !strings.HasPrefix(p.path, "/api/builds/") {
			continue // another route, of the list
		}
		header := key("X-Worker-Id", w.ID, "X-Build-Id", s.ID, "X-Admin-Key", adminKey)
		body := ""
		if p.method == http.MethodPost || p.method == http.MethodPatch {
			header["Content-Type"], body = "application/json", `{"reason":"x","priority":1,"weight":1,"by":1,"name":"x"}`
		}
		r := b.send(p.method, target, header, body)
		if strings.HasPrefix(p.path, "/admin/tree/") && r.status == 200 {
			require.Empty(b.t, strings.Trim(name, "/"), "only the root has no name")
			continue
		}
		requireRefused(b.t, r, p.method+" "+p.path, name)
		if as == name {
			break // escaped it is the same
		}
	}
}

func TestHostileNamesInQueriesHeadersAndFormsReachNothing(t *testing.T) {
	t.Parallel()
	b, s, w := hostileFixture(t)
	before := filesAround(t, b)
	field := func(name, content string) part { return part{name: name, content: content} }
	get := func(path string, header ...string) reply { return b.send("GET", path, key(header...), "") }
	build := "/api/builds/" + s.ID
	for _, name := range hostileNames() {
		q := url.QueryEscape(name)
		refused := map[string]reply{
			"worker_id of a heartbeat": b.send("POST", build+"/heartbeat?worker_id="+q, key(), ""), "worker_id of a poll": get("/api/workers/poll?worker_id=" + q),
			"status": get("/api/builds?status=" + q), "platform": get("/api/builds?platform=" + q),
			"build_id in a form":  b.form("/api/workers/upload", key(), field("build_id", name), field("worker_id", w.ID), field("success", "true"), part{"result", "x", "x"}),
			"worker_id in a form": b.form("/api/workers/upload", key(), part{"result", "x", "x"}, field("success", "true"), field("build_id", s.ID), field("worker_id", name)),
			"platform in a form":  b.form("/api/builds", key(), source("x"), field("platform", name)),
			"success in a form":   b.form("/api/workers/upload", key(), field("build_id", s.ID), field("worker_id", w.ID), field("success", "x"+name), part{"result", "x", "x"}),
			"priority in a form":  b.form("/api/builds", key(), source("x"), field("platform", "ios"), field("priority", "x"+name)),
			"labels in a form":    b.form("/api/builds", key(), source("x"), field("platform", "ios"), field("labels", "x"+name)),
		}
		harmless := map[string]reply{}
		for _, target := range []string{
			"/api/builds?format=" + q, "/api/builds?worker_id=" + q, "/api/builds?limit=" + q, build + "/logs?after=" + q + "&limit=" + q,
			"/api/workers/poll?worker_id=w&wait=" + q, "/api/workers/poll?worker_id=w&active=" + q, "/admin/tree?children=" + q, "/livez?" + q, build + "/status?" + q + "=1",
		} {
			harmless[target] = get(target, "X-Admin-Key", adminKey)
		}
		if sendable(name) {
			maps.Copy(refused, map[string]reply{
				"X-Worker-Id of a source": get(build+"/source", "X-Worker-Id", name), "X-Worker-Token": get("/api/workers/poll", "X-Worker-Token", name),
				"X-Worker-Id of logs": b.json("POST", build+"/logs", key("X-Worker-Id", name), `{"level":"info","message":"x"}`),
				"X-Build-Id":          b.form("/api/workers/upload", key("X-Build-Id", name, "X-Worker-Id", w.ID)), "X-Worker-Id": b.form("/api/workers/upload", key("X-Build-Id", s.ID, "X-Worker-Id", name)),
				"that of unregister": b.send("POST", "/api/workers/unregister", key("X-Worker-Token", name), ""),
				"X-Build-Token":      b.send("GET", build+"/status", map[string]string{"X-Build-Token": name}, ""),
				"X-API-Key":          b.send("GET", "/api/builds", map[string]string{"X-API-Key": name}, ""), "X-Admin-Key": b.send("GET", "/admin/tree", map[string]string{"X-Admin-Key": name}, ""),
				"Content-Type": b.send("POST", "/api/builds", key("Content-Type", name), "x"), "a boundary": b.send("POST", "/api/builds", key("Content-Type", "multipart/form-data; boundary="+name), "x"),
			})
			for _, h := range []string{"X-Request-Id", "Origin", "X-Forwarded-For", "Accept"} {
				harmless[h] = get("/livez", h, name)
			}
			harmless["Range"] = get(build+"/source", "X-Worker-Id", w.ID, "Range", name, "If-Range", name, "If-None-Match", name)
		}
		for what, r := range refused {
			requireRefused(t, r, what, name)
		}
		for what, r := range harmless {
			requireHarmless(t, r, what, name)
		}
	}
	require.Equal(t, before, filesAround(t, b))
	require.Equal(t, "building", b.status(s.ID).Status, "its own worker was heard of, and that is all")
}

// TestClientsFileNamesAreIgnored lets clients name their files as they like.
func TestClientsFileNamesAreIgnored(t *testing.T) {
	t.Parallel()
	b, _, _ := hostileFixture(t)
	known := filesAround(t, b)
	quote := strings.NewReplacer("\r", "", "\n", "", "\x00", "", `"`, `\"`, `\`, `\\`)
	var names []string
	for _, name := range hostileNames() {
		if name = quote.Replace(name); name != "" && len(name) <= 1000 { // a part's header has a limit, too, and a file has a name
			names = append(names, name)
		}
	}
	for two := range slices.Chunk(names, 2) {
		one, other := two[0], two[len(two)-1]
		r := b.form("/api/builds", key(), part{"source", one, "x"}, part{"certs", other, "x"},
			part{one, other, "x"}, part{other, one, "x"}, part{name: "platform", content: "ios"})
		require.Equal(t, 201, r.status, "%q: %s", two, r.body)
		id := decode[api.Submitted](t, r).ID
		dir := filepath.Join(filepath.Base(b.dir), "builds", id)
		for _, n := range []string{dir, filepath.Join(dir, "source.zip"), filepath.Join(dir, "certs.zip")} {
			known[n] = ""
		}
		require.Equal(t, 200, b.send("POST", "/api/builds/"+id+"/cancel", key(), "").status)
	}
	for name := range filesAround(t, b) {
		require.Contains(t, known, name)
	}
}
