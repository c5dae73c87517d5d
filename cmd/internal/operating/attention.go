package operating

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"takt/cmd/internal/cli"
	"takt/http/api"
	"takt/store"
)

// Attention returns takt attention.
func Attention(env cli.Environment) *cobra.Command {
	cmd := cli.Row(env, &cobra.Command{
		Use: "attention", Short: "Show what needs attention, and acknowledge it", Args: cobra.NoArgs,
		Long: `Show what needs attention, the most severe first, and what to do: the same as the
dashboard's overview and takt doctor say. Acknowledged problems come last.`,
	}, cli.Ask(api.ShowAttention), cli.Part(func(a api.Attention) []api.NeedsAttention { return a.Problems }, showProblems), nil)
	return cli.Group(
		cmd,
		cli.Row(env, &cobra.Command{
			Use: "acknowledge KIND [SUBJECT]... --for TIME --reason TEXT", Short: "Have a problem need no attention for a while", Args: cobra.MinimumNArgs(1),
			Long: `Have a problem need no attention for a while. KIND is as 'takt attention' shows it, SUBJECT
what has the problem, such as the id of a worker; without one, all that has it now. Pages
show it in grey and count it no longer, and no notice tells of it. Needs the admin key in
TAKT_ADMIN_KEY, or a key with the scope operate.`,
			Example: "  takt attention acknowledge offline mini-03 --for 7d --reason 'new disk on order'",
		}, cli.Order(api.AcknowledgeProblem), cli.Says[api.Attention]("acknowledged"), func(in *api.Acknowledge, f *cli.Flags) {
			f.StringVar(&in.For, "for", "8h", "how long, such as 8h or 7d, up to 30d")
			f.NeedReason(&in.Reason, nil)
			f.Set(func() { in.Kind, in.Subjects = f.Arg(0), f.Args()[1:] })
			f.Check(func() error {
				_, err := in.Lasts()
				return cli.AsUsage(err)
			})
		}),
		cli.Row(env, &cobra.Command{
			Use: "recall KIND [SUBJECT]...", Short: "End acknowledgements of a problem", Args: cobra.MinimumNArgs(1),
			Long: `End acknowledgements of a problem: those of some subjects, or without any all of the kind.
Needs the admin key in TAKT_ADMIN_KEY, or a key with the scope operate.`,
		}, cli.Order(api.RecallAcknowledgement), cli.Says[api.Attention]("recalled"), func(in *api.Recall, f *cli.Flags) {
			f.Reason(&in.Reason)
			f.Set(func() { in.Kind, in.Subjects = f.Arg(0), f.Args()[1:] })
		}),
	)
}

// showProblems shows each problem in lines of its own.
func showProblems(w io.Writer, all []api.NeedsAttention) {
	for _, p := range all {
		word := p.Severity
		if p.Acknowledged != nil {
			word = "known"
		}
		fmt.Fprintf(w, "%-5s  %s\n", word, store.Lines(p.Text))
		if a := p.Acknowledged; a != nil {
			fmt.Fprintf(w, "       acknowledged by %s until %s: %s\n", store.Lines(a.By), cli.TimeText(a.Until), store.Lines(a.Reason))
			continue
		}
		fmt.Fprintf(w, "       %s\n", store.Lines(p.Todo))
		if p.Command != "" {
			fmt.Fprintf(w, "       %s\n", store.Lines(p.Command))
		}
		fmt.Fprintf(w, "       takt attention acknowledge %s --reason ...\n", store.Lines(strings.Join(append([]string{p.Kind}, quoted(p.Subjects)...), " ")))
	}
	if len(all) == 0 {
		fmt.Fprintln(w, "nothing needs attention")
	}
}

// quoted quotes the subjects that a shell would split. Of many it returns none, which is all.
func quoted(subjects []string) (words []string) {
	if len(subjects) > 3 {
		return nil
	}
	for _, s := range subjects {
		if strings.ContainsAny(s, " '\"$`\\") {
			s = "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
		}
		words = append(words, s)
	}
	return words
}
