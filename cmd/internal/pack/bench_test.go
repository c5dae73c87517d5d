package pack_test

import (
	"archive/zip"
	"compress/flate"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/pack"
	"takt/store/storetest/needs"
)

// processorTime returns what this process and the git commands that it has run have used.
func processorTime(b *testing.B) (sum time.Duration) {
	b.Helper()
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var u syscall.Rusage
		require.NoError(b, syscall.Getrusage(who, &u))
		sum += time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	return sum
}

// BenchmarkPack packs 10 000 files of a repository that ignores 90 000 others, against the same list of
// git ls-files and a zip of what it names, in processor time.
func BenchmarkPack(b *testing.B) {
	needs.Git(b)
	root := b.TempDir()
	git := func(args ...string) []byte {
		cmd := exec.CommandContext(b.Context(), "git", args...)
		cmd.Dir = root
		out, err := cmd.Output()
		require.NoError(b, err)
		return out
	}
	git("init", "-q")
	require.NoError(b, os.WriteFile(filepath.Join(root, ".gitignore"), []byte("node_modules/\n*.o\n"), 0o600))
	text := strings.Repeat("const answer = 6 * 7 // as everybody knows\n", 60)
	fill := func(dir string, dirs, files int) {
		for i := range dirs {
			at := filepath.Join(root, dir, fmt.Sprint(i/30), fmt.Sprint(i))
			require.NoError(b, os.MkdirAll(at, 0o755))
			for j := range files {
				name := fmt.Sprintf("file%d.ts", j)
				require.NoError(b, os.WriteFile(filepath.Join(at, name), []byte(fmt.Sprintln(dir, i, j)+text[:(i*j*37)%len(text)]), 0o600))
			}
		}
	}
	fill("node_modules", 900, 100)
	fill("src", 500, 18)
	git("add", "-A")
	git("commit", "-q", "-m", "first")
	fill("new", 50, 20)

	buffer := make([]byte, 64<<10)
	peer := func() (took time.Duration) {
		begun := processorTime(b)
		z := zip.NewWriter(io.Discard)
		deflate, err := flate.NewWriter(io.Discard, flate.BestSpeed)
		require.NoError(b, err)
		z.RegisterCompressor(zip.Deflate, func(out io.Writer) (io.WriteCloser, error) {
			deflate.Reset(out)
			return deflate, nil
		})
		for name := range strings.SplitSeq(strings.TrimSuffix(string(git("ls-files", "-z", "-co", "--exclude-standard")), "\x00"), "\x00") {
			out, err := z.Create(name)
			require.NoError(b, err)
			in, err := os.Open(filepath.Join(root, name))
			require.NoError(b, err)
			_, err = io.CopyBuffer(out, struct{ io.Reader }{in}, buffer)
			require.NoError(b, err)
			require.NoError(b, in.Close())
		}
		require.NoError(b, z.Close())
		return processorTime(b) - begun
	}
	pack := func() (took, first time.Duration) {
		begun := processorTime(b)
		tree, err := pack.List(b.Context(), pack.Options{Dir: root})
		require.NoError(b, err)
		require.Equal(b, 10_001, tree.Files())
		require.NoError(b, tree.Write(b.Context(), io.Discard, nil))
		took = processorTime(b) - begun
		_, total := tree.LeftOut()
		require.Equal(b, 90_000, total.Files)
		return took, processorTime(b) - begun
	}
	peer()
	var usual, first []float64
	for b.Loop() {
		other := peer()
		took, once := pack()
		usual, first = append(usual, took.Seconds()/other.Seconds()), append(first, once.Seconds()/other.Seconds())
	}
	slices.Sort(usual)
	slices.Sort(first)
	b.ReportMetric(usual[len(usual)/2], "of-ls-files-and-zip")
	b.ReportMetric(first[len(first)/2], "of-it-at-first") // when what is left out is listed
}
