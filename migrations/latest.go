package migrations

// Latest is the number of the newest migration of this program; 0 when there
// is none. The error is a defect of the program.
func Latest() (int, error) {
	list, err := load(files)
	if err != nil || len(list) == 0 {
		return 0, err
	}
	return list[len(list)-1].version, nil
}
