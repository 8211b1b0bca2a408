package main

import (
	"fmt"

	"github.com/holdfast-lb/holdfast/internal/explain"
	"k8s.io/cli-runtime/pkg/resource"
)

// with returns the cluster as it would be with the objects of these files in it.
func with(s explain.Snapshot, files []string) (explain.Snapshot, error) {
	// No server is asked: a plan changes nothing, and knows all kinds that it reads.
	result := resource.NewLocalBuilder().WithScheme(scheme, scheme.PrioritizedVersionsAllGroups()...).
		FilenameParam(false, &resource.FilenameOptions{Filenames: files}).Flatten().Do()
	infos, err := result.Infos()
	if err != nil {
		return s, fmt.Errorf("read the objects: %w", err)
	}
	for _, info := range infos {
		if !s.Put(info.Object) {
			return s, fmt.Errorf("%s of %s: a plan knows Holdfast's kinds and Services only", info.ObjectName(), info.Source)
		}
	}
	return s, nil
}
