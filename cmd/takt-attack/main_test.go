package main

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/buildtest"
	"takt/cmd/internal/cli"
	"takt/store/storetest/needs"
)

// TestMain is the attacker, too.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "play" {
		main()
	}
	buildtest.Main(m)
}

// Times are judged by make attack, because here other tests run beside it.
func TestAttackersHarmNobody(t *testing.T) {
	t.Parallel()
	needs.Check(t)
	needs.Linux(t) // has all of 127.0.0.0/8 on loopback
	needs.Files(t, 4096)
	var out, errs bytes.Buffer
	code := cli.Execute(t.Context(), newRoot(), []string{
		"--takt", buildtest.Build(t), "--size", "small", "--modes", limited, "--json",
	}, &out, &errs)
	t.Log(out.String(), errs.String())
	var rows []row
	require.NoError(t, json.Unmarshal(out.Bytes(), &rows))
	require.Len(t, rows, len(attacks()))
	for _, r := range rows {
		require.Empty(t, r.Broken, r.Attack)
		require.Positive(t, r.P99[1], r.Attack)
	}
	require.Zero(t, code)
}

func TestJudgeComparesWithThePromises(t *testing.T) {
	t.Parallel()
	const second = time.Second
	start := time.Now()
	at := func(s int) time.Time { return start.Add(time.Duration(s) * second) }
	for name, tt := range map[string]struct {
		mode    string
		victim  [4]time.Duration // one request in each second: before, during, soon after and after
		probe   [4]time.Duration
		refused error
		memory  int64
		want    []string
	}{
		"as before":            {limited, [4]time.Duration{1e6, 90e6, 1e6, 1e6}, [4]time.Duration{}, nil, 0, []string{}},
		"three times":          {limited, [4]time.Duration{second, 3 * second, 1, 1}, [4]time.Duration{}, nil, 0, []string{}},
		"slow":                 {limited, [4]time.Duration{1e6, 101e6, 1, 1}, [4]time.Duration{}, nil, 0, []string{"the victim: p99 of 101 ms, 1 ms before (slow: 1 × x)"}},
		"slow without limit":   {unlimited, [4]time.Duration{1e6, second, second, 1}, [4]time.Duration{1, 2 * second, 2 * second, 1}, nil, 0, []string{}},
		"slow long after":      {unlimited, [4]time.Duration{1e6, 1, 1, second}, [4]time.Duration{}, nil, 0, []string{"the victim: p99 of 1000 ms after the attack, 1 ms before (slow: 1 × x)"}},
		"probes wait":          {limited, [4]time.Duration{}, [4]time.Duration{1, 1100e6, 1, 1}, nil, 0, []string{"a probe waited 1.1 s"}},
		"refused":              {unlimited, [4]time.Duration{}, [4]time.Duration{}, errors.New("no"), 0, []string{"the victim was refused 4 times"}},
		"a worker of much RAM": {limited, [4]time.Duration{}, [4]time.Duration{}, nil, 1 << 30, []string{"the worker took 1.0 GiB of memory"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := &measured{first: at(0), began: at(1), ended: at(2), settled: at(3), over: at(4)}
			m.memory.Store(tt.memory)
			for i := range 4 {
				m.victim.add(sample{at(i), tt.victim[i], "x", tt.refused})
				m.probes.add(sample{at(i), tt.probe[i], "x", nil})
			}
			r := judge(attack{worker: true}, tt.mode, m, true)
			require.Equal(t, tt.want, r.Broken)
			var out bytes.Buffer
			table([]row{r})(&out)
			require.Equal(t, len(tt.want) > 0, bytes.Contains(out.Bytes(), []byte("NO")), out.String())
		})
	}
}

func TestArchivesAreRight(t *testing.T) {
	t.Parallel()
	for n, raw := range map[int][]byte{100: linksArchive(100), 70_000: directoryArchive(70_000)} {
		z, err := zip.NewReader(bytes.NewReader(raw), int64(len(raw)))
		require.NoError(t, err)
		require.Len(t, z.File, n)
	}
}

func TestAttackSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{
		"takt itself is needed":       {"--takt", t.TempDir() + "/none"},
		"full or small":               {"--size", "x"},
		`there is no attack "x": con`: {"--only", "x"},
		"--modes are":                 {"--modes", "x"},
	} {
		var out bytes.Buffer
		require.NotZero(t, cli.Execute(t.Context(), newRoot(), args, &out, &out))
		require.Contains(t, out.String(), want)
	}
}
