package builds

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"takt/cmd/internal/cli"
	"takt/http/api"
	"takt/store"
)

// several are the flags of a command that changes one build, or all that have some labels.
type several struct {
	labels   api.LabelFilter
	platform string
	state    string
	suspect  string // the worker on which they failed, in place of labels
	yes      bool
	alone    []string // flags that are for one build
}

// labelFlag adds --label to a list.
func labelFlag(f *cli.Flags, to *api.LabelFilter) {
	texts := f.StringArrayP("label", "l", nil, "only builds with this label, as name=value; may be repeated: builds that have all of them")
	f.Check(func() (err error) {
		*to, err = readLabels(*texts)
		return err
	})
}

func readLabels(texts []string) (api.LabelFilter, error) {
	l := api.LabelFilter(texts)
	if err := l.Check(); err != nil {
		return nil, cli.Usage("--label: %s", strings.TrimPrefix(cli.Message(err), "label: "))
	}
	return l, nil
}

// flags adds the flags to cmd, which takes a build's id or labels.
func (o *several) flags(cmd *cobra.Command, state string, states ...string) {
	f := cmd.Flags()
	texts := f.StringArrayP("label", "l", nil, "all builds with this label, as name=value; may be repeated: builds that have all of them")
	f.StringVarP(&o.platform, "platform", "p", "", "with --label: only builds for this platform")
	f.StringVar(&o.state, "status", state, "with --label: only builds in this state")
	f.BoolVarP(&o.yes, "yes", "y", false, "with --label: do not ask")
	cli.OneOf(cmd, "status", states...)
	cmd.Args = func(cmd *cobra.Command, args []string) (err error) {
		if len(*texts) == 0 && o.suspect == "" {
			for _, only := range []string{"platform", "status", "yes"} {
				if f.Changed(only) {
					return cli.Usage("--%s needs --label", only)
				}
			}
			return cobra.ExactArgs(1)(cmd, args)
		}
		if len(args) > 0 {
			return cli.Usage("give a build's id, or --label for several, not both")
		}
		for _, one := range o.alone {
			if f.Changed(one) {
				return cli.Usage("--%s is for one build, not with --label", one)
			}
		}
		o.labels, err = readLabels(*texts)
		return err
	}
}

// which says which builds are selected.
func (o *several) which() string {
	var which []string
	if o.suspect != "" {
		which = append(which, "that failed on "+o.suspect+" while it was suspect")
	}
	if len(o.labels) > 0 {
		which = append(which, "with "+strings.Join(o.labels, " and "))
	}
	return strings.Join(which, " ")
}

// severalChanged are all builds that a command changed, or could not.
type severalChanged struct {
	Builds []api.OneChanged `json:"builds"`
}

// change changes builds until none is left, and shows them.
func (o *several) change(ctx context.Context, s *cli.Session, cmd *cobra.Command, verb string, call func(context.Context, api.SeveralBuilds) (api.SeveralChanged, error)) error {
	if !o.yes {
		if err := s.Confirm(cmd.InOrStdin(), verb+" all builds "+o.which()+"?"); err != nil {
			return err
		}
	}
	all, failed := severalChanged{Builds: []api.OneChanged{}}, 0
	for more := true; more; {
		reply, err := call(ctx, api.SeveralBuilds{Label: o.labels, Platform: o.platform})
		if err != nil {
			return err
		}
		done := 0
		for _, b := range reply.Builds {
			if b.Error != "" {
				failed++
			} else {
				done++
			}
			if b.Retry != nil {
				if err := s.Tokens.Keep(s.Client.BaseURL(), b.Retry.ID, b.Retry.AccessToken, time.Now()); err != nil {
					s.Note("takt: the access token of build %s could not be kept: %v", b.Retry.ID, err)
				}
				b.Retry.AccessToken = "" // a secret, not shown
			}
		}
		all.Builds = append(all.Builds, reply.Builds...)
		more = reply.More && done > 0
	}
	err := s.Result(all, func(w io.Writer) {
		for _, b := range all.Builds {
			switch {
			case b.Error != "":
				fmt.Fprintf(w, "%s not changed: %s\n", b.ID, store.Line(b.Error))
			case b.Retry != nil:
				fmt.Fprintf(w, "%s retried as %s\n", b.ID, b.Retry.ID)
			default:
				fmt.Fprintf(w, "%s cancelled\n", b.ID)
			}
		}
	})
	if len(all.Builds) == 0 {
		s.Note("there is no build %s that can be changed so", o.which())
	}
	if err == nil && failed > 0 {
		err = fmt.Errorf("%d of %d builds were not changed", failed, len(all.Builds))
	}
	return err
}
