package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// events are what go test -json prints of two packages, one of which ends before a test has.
const events = `{"Action":"start","Package":"takt/a"}
{"Action":"output","Package":"takt/a","Test":"TestOne","Output":"    one_test.go:1: a line of a log\n"}
{"Action":"pass","Package":"takt/a","Test":"TestOne","Elapsed":2.5}
{"Action":"output","Package":"takt/a","Test":"TestTwo/part","Output":"    two_test.go:9: needs podman: left to make check\n"}
{"Action":"skip","Package":"takt/a","Test":"TestTwo/part"}
{"Action":"pass","Package":"takt/a","Test":"TestTwo","Elapsed":0.5}
{"Action":"output","Package":"takt/a","Test":"TestThree","Output":"    three_test.go:7: it is wrong\n"}
{"Action":"fail","Package":"takt/a","Test":"TestThree","Elapsed":9}
{"Action":"output","Package":"takt/a","Output":"PASS\n"}
{"Action":"output","Package":"takt/a","Output":"ok  \ttakt/a\t3.0s\n"}
{"Action":"output","Package":"takt/b","Test":"TestOne","Output":"    needs podman: no\n"}
{"Action":"skip","Package":"takt/b","Test":"TestOne"}
{"Action":"output","Package":"takt/b","Test":"TestFour","Output":"    needs S3: no\n"}
{"Action":"skip","Package":"takt/b","Test":"TestFour"}
{"Action":"output","Package":"takt/b","Test":"TestFive","Output":"    because\n"}
{"Action":"output","Package":"takt/b","Test":"TestEight","Output":"    b_test.go:3: left to make test-long\n"}
{"Action":"skip","Package":"takt/b","Test":"TestEight"}
{"Action":"skip","Package":"takt/b","Test":"TestFive"}
{"Action":"pass","Package":"takt/b","Test":"TestSix","Elapsed":1}
{"Action":"output","Package":"takt/b","Test":"TestSeven","Output":"=== RUN   TestSeven\n"}
no json
`

func TestReport(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	r := newReport(&out)
	require.NoError(t, r.read(strings.NewReader(events)))
	r.close(2, 61*time.Second)
	require.Equal(t, `    three_test.go:7: it is wrong
ok  	takt/a	3.0s
    because
no json
takt/b TestSeven did not end:
=== RUN   TestSeven

slowest:
    9.0s a TestThree
    2.5s a TestOne

took 1m1s
3 passed, 2 failed, 5 skipped
not here: 2 need podman, 1 needs S3 (make check)
run when asked for: 1 by make test-long
`, out.String())
	// The one that was skipped in one package has to be run again.
	require.Equal(t, []string{"TestSix"}, r.complete())

	path := filepath.Join(t.TempDir(), "passed")
	require.NoError(t, os.WriteFile(path, []byte("TestOne\nTestSix\n"), 0o600))
	flag, err := skipFlag(path)
	require.NoError(t, err)
	require.Equal(t, "-skip=^(TestOne|TestSix)$", flag)
	_, err = skipFlag(path + "not")
	require.Error(t, err)
}
