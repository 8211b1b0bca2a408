package main

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/explain"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
)

// bundle is what a file for a bug report holds.
type bundle struct {
	// LeftOut says what is not in it, in sentences.
	LeftOut []string
	explain.Snapshot
}

// hide removes what a report must not have. Snapshots share objects with nothing.
func (b *bundle) hide() {
	b.LeftOut = append(b.LeftOut, "Secrets are not read; passwords in BGPPeers are replaced; labels, annotations and fields of Services and Nodes are as they are")
	for _, p := range b.Objects.Peers {
		if p.Spec.Password != "" {
			p.Spec.Password = "unread"
		}
		delete(p.Annotations, corev1.LastAppliedConfigAnnotation) // it repeats the password
	}
	for _, resource := range slices.Sorted(maps.Keys(b.Unread)) {
		b.LeftOut = append(b.LeftOut, resource+": "+b.Unread[resource])
	}
}

func (s *seat) bundle() *cobra.Command {
	return &cobra.Command{
		Use: "bundle FILE", Short: "Write what a bug report needs into a file, without passwords", Args: cobra.ExactArgs(1),
		Long: "The file is compressed JSON. With --from FILE all other commands read it in place of the cluster.",
		RunE: func(cmd *cobra.Command, args []string) error {
			snapshot, err := s.read(cmd.Context(), "")
			if err != nil {
				return err
			}
			b := bundle{Snapshot: snapshot}
			if s.from == "" {
				if err := s.daemons(cmd.Context(), &b); err != nil {
					return err
				}
			}
			b.hide()
			if err := b.write(args[0]); err != nil {
				return err
			}
			for _, text := range b.LeftOut {
				fmt.Fprintln(cmd.OutOrStdout(), "left out:", text)
			}
			return nil
		},
	}
}

func (b *bundle) write(name string) (err error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	w := gzip.NewWriter(f)
	err = json.NewEncoder(w).Encode(b)
	return errors.Join(err, w.Close(), f.Close())
}

// readBundle reads the snapshot of a bundle.
func readBundle(name string) (explain.Snapshot, error) {
	var b bundle
	f, err := os.Open(name)
	if err != nil {
		return b.Snapshot, err
	}
	defer f.Close()
	r, err := gzip.NewReader(f)
	if err == nil {
		err = json.NewDecoder(r).Decode(&b)
	}
	if err != nil {
		return b.Snapshot, fmt.Errorf("read the bundle %s: %w", name, err)
	}
	return b.Snapshot, nil
}

// daemons adds the page of each daemon. What cannot be read is left out.
func (s *seat) daemons(ctx context.Context, b *bundle) error {
	r, err := s.reader()
	if err != nil {
		return err
	}
	var pods []*corev1.Pod
	if err := list(r, "/api/v1", explain.Pods, s.namespace, parts, &pods)(ctx); err != nil {
		return err
	}
	r.pages(ctx, pods, &b.Snapshot)
	for _, pod := range slices.Sorted(maps.Keys(b.Silent)) {
		b.LeftOut = append(b.LeftOut, "the page of pod "+pod+": "+b.Silent[pod])
	}
	return nil
}
