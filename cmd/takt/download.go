package main

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"takt/cmd/internal/cli"
	"takt/http/client"
)

func newDownloadCommand(env environment) *cobra.Command {
	r := remote{env: env}
	var output string
	cmd := &cobra.Command{
		Use:   "download ID",
		Short: "Download a build's result",
		Long: `Download a build's result and check its digest. An interrupted download is kept
as FILE.part and goes on where it stopped when the command is given again.`,
		Args: cli.Arguments(cobra.ExactArgs(1)),
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "file to write (default: the build's id and what the controller calls it)")
	return r.command(cmd, func(ctx context.Context, s *session, args []string) error {
		auth, err := s.auth(args[0])
		if err != nil {
			return err
		}
		return downloadResult(ctx, s, args[0], auth, output)
	})
}

// downloadResult writes a build's result to output, which appears only when it is
// whole.
func downloadResult(ctx context.Context, s *session, id string, auth client.BuildAuth, output string) error {
	part := firstSet(output, id) + ".part"
	f, err := os.OpenFile(part, os.O_RDWR|os.O_CREATE, 0o644) //nolint:gosec // a result, as readable as any file its owner makes
	if err != nil {
		return cli.AsUsage(err)
	}
	defer f.Close()
	bar := cli.NewBar(s.Err, "downloading", s.JSON)
	got, err := s.client.Download(ctx, id, auth, f, client.FetchOptions{
		Retry: s.retry, Resume: true, Progress: bar.Progress(),
	})
	bar.Done()
	if err != nil {
		if info, statErr := f.Stat(); statErr == nil && info.Size() == 0 {
			_ = os.Remove(part)
		}
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if output == "" {
		output = id + filepath.Ext(filepath.Base(got.Name))
	}
	if err := os.Rename(part, output); err != nil {
		return err
	}
	return s.Result(struct {
		File   string `json:"file"`
		Bytes  int64  `json:"bytes"`
		SHA256 string `json:"sha256"`
	}{output, got.Size, hex.EncodeToString(got.Digest[:])}, func(w io.Writer) {
		fmt.Fprintf(w, "%s\t%d bytes\n", output, got.Size)
	})
}
