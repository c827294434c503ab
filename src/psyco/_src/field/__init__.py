"""After deployment: does the promise hold in the field?"""
