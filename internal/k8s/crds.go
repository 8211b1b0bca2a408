package k8s

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// WriteCRDs writes the custom resource definitions in the files of a directory to the cluster. It creates what is not
// there and deletes nothing. It patches by merge, which replaces lists: by server-side apply, rules that another writer
// owns too would stay.
func (c Clients) WriteCRDs(ctx context.Context, log *slog.Logger, dir string) error {
	files, _ := filepath.Glob(filepath.Join(dir, "*.yaml")) // a bad pattern matches none
	if len(files) == 0 {
		return fmt.Errorf("no definitions in %s", dir)
	}
	for _, file := range files {
		var o metav1.PartialObjectMetadata
		text, err := os.ReadFile(file)
		if err == nil {
			text, err = yaml.ToJSON(text)
		}
		if err == nil {
			err = json.Unmarshal(text, &o)
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", file, err)
		}
		const all = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
		client := c.kube.core
		err = client.Patch(types.MergePatchType).AbsPath(all, o.Name).Body(text).Do(ctx).Error()
		if apierrors.IsNotFound(err) {
			err = client.Post().AbsPath(all).SetHeader("Content-Type", "application/json").Body(text).Do(ctx).Error()
		}
		if err != nil {
			return fmt.Errorf("write %s: %w", o.Name, err)
		}
		log.Info("wrote definition", "name", o.Name)
	}
	return nil
}
